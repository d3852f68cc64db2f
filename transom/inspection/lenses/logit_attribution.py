"""Direct logit attribution: a logit as a sum of what embedding, heads, feed-forward networks and biases wrote to the residual stream.

The logit is a linear function of the residual stream once the statistics of the norms are held fixed. So a vector g, the gradient of the
logit with respect to the stream, is carried back from the output layer to the embedding, and each part of the model contributes g times its
output. In post-norm blocks g passes through the norm of every sub-layer.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transom.decoding.inference import eval_mode
from transom.errors import ConfigError
from transom.files.message import phrase
from transom.inspection.activations import Activations, feed_forward_input
from transom.inspection.derive_attention import output_weights
from transom.inspection.lenses.readout import flat_logits, is_pooled, lens_input, output_stack, require_one_row, token_mask
from transom.inspection.trace import trace
from transom.layers.attention import Attention
from transom.layers.block import PostNormBlock, SandwichBlock
from transom.layers.feed_forward import FeedForward, GatedFeedForward
from transom.layers.mixture_of_depths import all_tokens
from transom.layers.mixture_of_experts import MixtureOfExperts
from transom.layers.norm import BatchNorm, DynamicTanh, LayerNorm, Norm, RmsNorm
from transom.layers.output_projection import logit_weights
from transom.layers.vision.patch_embedding import PatchEmbedding
from transom.models.encoder import MaskedEncoderTransformer, TextClassifierTransformer


class Contribution(NamedTuple):
    """Part of a logit that one part of the model contributes directly.

    Attributes:
        part: path of the part: ``decoder.blocks.0.attn``, ``decoder.blocks.0.ff``, ``embedding.position``, ``decoder.norm.bias``.
        head: index of the attention head; None for other parts.
        value: contribution to the logit, or to the difference of two logits.
    """

    part: str
    head: int | None
    value: float


class LogitAttribution(NamedTuple):
    """A logit, or the difference of two logits, as a sum of contributions (direct logit attribution; Elhage et al. 2021).

    Attributes:
        position: position of the logits in the text; 0 for a class of a text or image.
        symbol: index of the symbol or class.
        against: index of the symbol or class whose logit is subtracted; None for a single logit.
        logit: the logit, or difference, that the model computed.
        contributions: all parts from the embedding to the output layer. Their sum is ``logit``, within rounding.
    """

    position: int
    symbol: int
    against: int | None
    logit: float
    contributions: list[Contribution]

    @property
    def total(self) -> float:
        """Sum of all contributions."""
        return sum(each.value for each in self.contributions)


def logit_attribution(
    model: Any, inputs: Any, symbol: int | None = None, *, against: int | None = None, position: int | None = None
) -> LogitAttribution:
    """Divide the logit of a symbol, or the difference of the logits of two, among the parts of the model that wrote to the residual stream.

    The statistics by which norms divide are those of the pass, held fixed. An element-wise function f of an output layer or norm (tanh,
    GELU) is f(u) = u (f(u) / u) with the ratio held fixed. A head contributes z_h W_O_h, which holds whatever it copied from other
    positions; in a block with a depth router every part is multiplied by the token's score r.

    Args:
        model: a run loaded by ``transom.load``, or a model: any Transformer with logits per token, text or image.
        inputs: a text (for a loaded run), or a batch or tensor of one row.
        symbol: index of the symbol or class; None for the most probable.
        against: index of the symbol or class whose logit is subtracted; None to explain the logit of ``symbol`` alone.
        position: position of the logits; None for the last token. Models with one answer per text or image have position 0 only.

    Raises:
        ConfigError: the input has several rows, the position or symbol does not exist, or a norm or feed-forward network of a plugin is not
            linear in the stream.
    """
    network, batch, _ = lens_input(model, inputs)
    return attribute_logit(trace(network, batch, ["logits"], store="all")[1].activations, symbol, against=against, position=position)


def attribute_logit(
    a: Activations, symbol: int | None = None, *, against: int | None = None, position: int | None = None
) -> LogitAttribution:
    """Divide a logit of a pass of which every site was kept; arguments and errors as for ``logit_attribution``."""
    output_stack(a.model)
    require_one_row(len(a["logits"]))
    own = flat_logits(a["logits"])[0]
    valid = token_mask(a)[0].nonzero()[:, 0].tolist()
    position = valid[-1] if position is None else position
    if position not in valid:
        raise ConfigError(f"position: expected a position from {valid[0]} to {valid[-1]}, found {position}")
    symbol = int(own[position].argmax()) if symbol is None else symbol
    for each in (symbol, against):
        if each is not None and not 0 <= each < own.shape[1]:
            raise ConfigError(f"symbol: expected an index from 0 to {own.shape[1] - 1}, found {each}")
    with torch.no_grad(), eval_mode(a.model):
        contributions = _Backward(a).run(position, symbol, against)
    logit = own[position, symbol].item() - (0.0 if against is None else own[position, against].item())
    return LogitAttribution(position, symbol, against, logit, contributions)


class _Rows(NamedTuple):
    """Positions of a block or stack at which the logit depends on the stream.

    Attributes:
        sites: index of each row in the tensors of the sites, which hold the selected tokens only in a block with a depth router.
        g: gradient of the logit with respect to the stream at these positions, in float64.
    """

    sites: Tensor
    g: Float[Tensor, "rows d_model"]


class _Backward:
    """Carries the gradient of a logit back through the residual stream, and collects the contributions."""

    def __init__(self, a: Activations) -> None:
        self.a, self.stack = a, output_stack(a.model)
        self._found: list[list[Contribution]] = []

    def run(self, position: int, symbol: int, against: int | None) -> list[Contribution]:
        """Return all contributions, in the order of the forward pass."""
        rows = self._head(position, symbol, against)
        module = self.a.module(self.stack)
        if module.norm is not None:
            rows = self._norm(f"{self.stack}.norm", rows)
        for i in reversed(range(len(module.blocks))):
            rows = self._block(f"{self.stack}.blocks.{i}", rows)
        self._embedding(rows)
        return [each for group in reversed(self._found) for each in group]

    def _add(self, part: str, values: Sequence[float] | Tensor | float, heads: bool = False) -> None:
        """Collect the contribution of a part, or of each of its heads."""
        listed = torch.as_tensor(values, dtype=torch.float64).reshape(-1).tolist()
        self._found.append([Contribution(part, i if heads else None, value) for i, value in enumerate(listed)])

    def _bias(self, part: str, bias: Tensor | None, rows: _Rows) -> None:
        """Collect what a vector contributes that is added at every position."""
        if bias is not None:
            self._add(part, (rows.g @ bias.double()).sum())

    def _head(self, position: int, symbol: int, against: int | None) -> _Rows:
        """Carry the gradient from the logit to the output of the stack: through W_U, pooler or transform, and pooling."""
        a = self.a
        model: Any = a.model
        g = self._logit(position, symbol, against)
        if isinstance(model, MaskedEncoderTransformer):
            here = torch.tensor([position], device=g.device)
            u = model.transform(a["encoder.out"])[0, here].double()
            rows = self._norm("transform_norm", _Rows(here, g[None]))
            ratio = torch.where(u == 0, 0.0, model.activation(u) / u)
            rows = self._linear("transform", model.transform, _Rows(here, rows.g * ratio))
            return rows
        if not is_pooled(model):
            return _Rows(torch.tensor([position], device=g.device), g[None])
        if isinstance(model, TextClassifierTransformer) and model.pooler is not None:
            u = model.pooler(a["pooled"])[0].double()
            here = torch.zeros(1, dtype=torch.long, device=g.device)
            g = self._linear("pooler", model.pooler, _Rows(here, (g * torch.where(u == 0, 0.0, model.activation(u) / u))[None])).g[0]
        if model.config.pooling == "cls":
            n = getattr(model.config, "n_pooled", 1)
            return _Rows(torch.arange(n, device=g.device), g.unflatten(0, (n, -1)))
        n = a[f"{self.stack}.out"].shape[1]
        mask = a.batch.source.segments[0] > 0 if isinstance(model, TextClassifierTransformer) else torch.ones(n, device=g.device) > 0
        sites = mask.nonzero()[:, 0]
        return _Rows(sites, g.expand(len(sites), -1) / len(sites))

    def _logit(self, position: int, symbol: int, against: int | None) -> Float[Tensor, "d_model"]:
        """Return the gradient of the logit with respect to the last hidden state; a soft-cap c tanh(z / c) is z times a fixed ratio."""
        model: Any = self.a.model
        weight, bias = logit_weights(model.unembedding)
        w, found = [], 0.0
        for index, sign in ((symbol, 1.0), (against, -1.0)):
            if index is None:
                continue
            ratio, hidden = 1.0, flat_logits(self.a["last_hidden"])[0, position]
            row, shift = weight[index].double(), 0.0 if bias is None else bias[index].item()
            z = (hidden.double() @ row).item() + shift
            if model.logit_softcap is not None and z:
                ratio = model.logit_softcap * math.tanh(z / model.logit_softcap) / z
            w.append(sign * ratio * row)
            found += sign * ratio * shift
        if bias is not None:
            self._add("unembedding.bias", found)
        return torch.stack(w).sum(0)

    def _linear(self, path: str, module: nn.Linear, rows: _Rows) -> _Rows:
        """Carry the gradient from output to input of a linear layer."""
        self._bias(f"{path}.bias", module.bias, rows)
        return rows._replace(g=rows.g @ module.weight.double())

    def _norm(self, path: str, rows: _Rows) -> _Rows:
        """Carry the gradient from output to input of a norm, whose statistics are held fixed.

        Raises:
            ConfigError: the norm is one of a plugin.
        """
        a, module = self.a, self.a.module(path)
        if type(module) is Norm:
            return rows
        if not isinstance(module, LayerNorm | RmsNorm | BatchNorm | DynamicTanh):
            raise ConfigError(
                phrase(
                    "errors.norm",
                    "{path}: expected a norm that is linear once its statistics are fixed, found {found}",
                    path=path,
                    found=type(module).__name__,
                )
            )
        x = a[f"{path}.x"][0, rows.sites].double()
        g = rows.g * module.weight.double()
        if isinstance(module, DynamicTanh):
            ratio = torch.where(x == 0, module.alpha.double(), torch.tanh(module.alpha.double() * x) / x)
            self._bias(f"{path}.bias", module.bias, rows)
            return rows._replace(g=g * ratio)
        if isinstance(module, BatchNorm):
            g = g / (module.variance.double() + module.eps).sqrt()
            self._add(f"{path}.bias", (rows.g @ module.bias.double()).sum() - (g @ module.mean.double()).sum())
            return rows._replace(g=g)
        if isinstance(module, RmsNorm):
            return rows._replace(g=g / (x.square().mean(-1, keepdim=True) + module.eps).sqrt())
        self._bias(f"{path}.bias", module.bias, rows)
        g = g / (x.var(-1, correction=0, keepdim=True) + module.eps).sqrt()
        return rows._replace(g=g - g.mean(-1, keepdim=True))

    def _block(self, path: str, rows: _Rows) -> _Rows:
        """Carry the gradient from output to input of a block; through a depth router, x' = x + r (Block(x) - x), at selected tokens."""
        a, router = self.a, self.a.module(path).depth
        if router is None:
            return self._sublayers(path, rows)
        selected, r = a[f"{path}.depth.selected"][0], a[f"{path}.depth.score"][0].double()
        inside = selected[rows.sites]
        if not inside.any():
            return rows
        index = torch.arange(len(selected), device=selected.device) if router.path is all_tokens else selected.cumsum(0) - 1
        scaled = r[rows.sites[inside], None] * rows.g[inside]
        g = rows.g.clone()
        g[inside] += self._sublayers(path, _Rows(index[rows.sites[inside]], scaled)).g - scaled
        return rows._replace(g=g)

    def _sublayers(self, path: str, rows: _Rows) -> _Rows:
        """Carry the gradient from output to input of a block, whose sub-layers contribute."""
        block = self.a.module(path)
        for part in ("ff", "cross", "attn"):
            if getattr(block, part) is None:
                continue
            if block.parallel:
                self._sublayer(f"{path}.{part}", rows)
            elif isinstance(block, PostNormBlock):
                rows = self._norm(f"{path}.{part}_residual.norm", rows)
                self._sublayer(f"{path}.{part}", rows)
            else:
                written = self._norm(f"{path}.{part}_residual.norm_out", rows) if isinstance(block, SandwichBlock) else rows
                self._sublayer(f"{path}.{part}", written)
        return rows

    def _sublayer(self, path: str, rows: _Rows) -> None:
        """Collect what an attention layer or feed-forward network contributes.

        Raises:
            ConfigError: it is a feed-forward network of a plugin.
        """
        a, module = self.a, self.a.module(path)
        match module:
            case Attention():
                if isinstance(module.o, nn.Linear):
                    self._bias(f"{path}.o.bias", module.o.bias, rows)
                z = a[f"{path}.z"][0, :, rows.sites].double()  # (heads, rows, d_value)
                back = torch.einsum("qd,hvd->hqv", rows.g, output_weights(module, a[f"{path}.z"]).double())
                self._add(path, (back * z).sum((1, 2)), heads=True)
            case MixtureOfExperts():
                self._experts(path, module, rows)
            case FeedForward() | GatedFeedForward():
                self._add(path, (a[f"{path}.out"][0, rows.sites].double() * rows.g).sum())
            case _:
                raise ConfigError(f"{path}: expected a feed-forward network of transom, found {type(module).__name__}; give another run")

    def _experts(self, path: str, module: MixtureOfExperts, rows: _Rows) -> None:
        """Collect what each expert contributes, times its gate, and the shared expert."""
        a = self.a
        x = feed_forward_input(a, path)[0, rows.sites]
        chosen, gates = a[f"{path}.chosen"][0, rows.sites], a[f"{path}.gates"][0, rows.sites].double()
        if module.shared is not None:
            self._add(f"{path}.shared", (module.shared(x).double() * rows.g).sum())
        for number in reversed(chosen.unique().tolist()):
            token, slot = (chosen == number).nonzero(as_tuple=True)
            out = module.experts[number](x[token]).double() * gates[token, slot, None]
            self._add(f"{path}.experts.{number}", (out * rows.g[token]).sum())

    def _embedding(self, rows: _Rows) -> None:
        """Collect what tokens or patches, the class token and positions contribute."""
        a = self.a
        path = "target_embedding" if hasattr(a.model, "target_embedding") else "embedding"
        module = a.module(path)
        if not isinstance(module, PatchEmbedding) and module.norm is not None:
            rows = self._norm(f"{path}.norm", rows)
        if (p := a.get(f"{path}.position")) is not None:
            self._add(f"{path}.position", (p[0, rows.sites].double() * rows.g).sum())
        if (t := a.get(f"{path}.token_type")) is not None:
            self._add(f"{path}.token_type", (t[0, rows.sites].double() * rows.g).sum())
        for name, x in self._tokens(path, module):
            self._add(f"{path}.{name}", (x[rows.sites].double() * rows.g).sum())

    def _tokens(self, path: str, module: nn.Module) -> Iterator[tuple[str, Tensor]]:
        """Yield what the embedding holds besides positions, (positions, d_model)."""
        a = self.a
        if not isinstance(module, PatchEmbedding):
            yield "token", a[f"{path}.token"][0]
            return
        patches, cls = a[f"{path}.patch"][0], a.get(f"{path}.cls")
        config: Any = a.model.config
        n_class = config.n_class_tokens
        yield "patch", torch.cat([patches.new_zeros(n_class, patches.shape[1]), patches])
        for i, (name, token) in enumerate((("cls", cls), ("distillation", a.get(f"{path}.distillation")))):
            if token is not None:
                own = patches.new_zeros(n_class + len(patches), patches.shape[1])
                own[i] = token[0, 0]
                yield name, own
