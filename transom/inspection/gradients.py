"""Gradients of a scalar loss with respect to any quantity of a forward pass.

Gradients of sites and of module outputs come from autograd, through the kernels that training uses. All others follow from these by the
chain rule, with the forward pass's own values: dA = dZ V^T and dS = A (dA - rowsum(A dA)) for attention, for example.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transom.decoding.inference import eval_mode
from transom.errors import ConfigError
from transom.inspection.activations import Activations, NotRecordedError, autocast_as, autocast_dtype, feed_forward_input, heads_of, join
from transom.inspection.derive_attention import AttentionInputs, is_exact
from transom.inspection.derive_recurrent import cell, unroll
from transom.layers.context import ALL_PAIRS, Part
from transom.layers.embedding import Embedding
from transom.layers.norm import BatchNorm
from transom.layers.observe import ActivationRecorder, Edit, Visit
from transom.layers.recurrent.recurrent_decoder import AdditiveDecoder, InputFeedingDecoder
from transom.models.base import LanguageModel, Network, Seq2SeqModel
from transom.models.encoder import TextEmbedderTransformer

Loss = Callable[[Tensor], Tensor]
"""Returns a scalar, given the logits."""


def answers(model: Network, batch: Any, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the symbols whose log-probability the default loss averages, and a mask that is True where they count.

    These are the next tokens for models that generate text, and the most likely symbols or classes for other models; padding has none.
    """
    if isinstance(model, LanguageModel):
        tokens, segments = batch.decoder_input.tokens, batch.decoder_input.segments
        follows = F.pad((segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0), (0, 1))
        return tokens.roll(-1, 1), follows
    if isinstance(model, Seq2SeqModel) and hasattr(batch, "labels"):
        return batch.labels, batch.loss_mask
    best = logits.argmax(-1)
    if best.dim() == 2 and hasattr(batch, "source"):  # a symbol per token
        return best, batch.source.segments > 0
    return best, torch.ones_like(best, dtype=torch.bool)


class _AddZeros(Edit):
    """An edit that adds zeros to the tensor of a site, whose gradient is the gradient of the site, also in a loop over time steps."""

    zeros: Tensor | None = None

    def apply(self, x: Tensor, visit: Visit) -> Tensor:
        if not x.is_floating_point():
            return x
        if self.zeros is None:
            self.zeros = torch.zeros_like(x, requires_grad=True)
        return x + self.zeros


class Gradients:
    """Gradients of a loss by the address of the quantity.

    Attributes:
        a: quantities of the same pass.
        sites: gradient per site.
        outputs: gradients of the outputs of each module, one per call, by its path.
        answers: symbols of the default loss and the mask where they count; None with another loss.
    """

    def __init__(
        self,
        a: Activations,
        sites: Mapping[str, Tensor],
        outputs: Mapping[str, list[Tensor]],
        answers: tuple[Tensor, Tensor] | None,
    ) -> None:
        self.a, self.sites, self.outputs, self.answers = a, sites, outputs, answers

    def get(self, address: str) -> Tensor | None:
        """Return the gradient of a quantity; None if it has none, such as whole numbers. It is 0 where the loss does not depend on it."""
        return self._derive(address, {})

    def of_map(self, address: str, heads: Sequence[int] | None, part: Part) -> Tensor | None:
        """Return the gradient of scores or weights of an attention layer for some query heads and rows, which alone are computed."""
        return self._derive(address, {"heads": heads, "part": part})

    def _derive(self, address: str, options: Mapping[str, Any]) -> Tensor | None:
        """Apply the rule of a quantity, with options of the rule."""
        from transom.inspection.names import owner_kind  # the table's kinds

        path, _, name = address.rpartition(".")
        kind = owner_kind(self.a.module(path), path)
        derive = RULES.get((str(kind), name))
        with self.a.as_in_pass():
            if derive is None:
                x = self.sites.get(address)
                return None if x is None else self.a.without_padding(address, x)
            try:
                return derive(self, path, **options)
            except NotRecordedError:  # no token was sent to this expert or block
                return None

    def site(self, address: str) -> Tensor:
        """Return the gradient of a site.

        Raises:
            NotRecordedError: the pass did not reach the site.
        """
        if address not in self.sites:
            raise NotRecordedError(f"expected a site that the pass reached, found {address!r}; name another quantity")
        return self.a.without_padding(address, self.sites[address])

    def output(self, path: str) -> Tensor | None:
        """Return the gradient of a module's output; None if the module was not called once. An embedder calls it for both of its texts."""
        calls = self.outputs.get(path, [])
        if len(calls) != 1 and not (calls and isinstance(self.a.model, TextEmbedderTransformer)):
            return None
        return self.a.without_padding(f"{path}.out", calls[0])


def gradient_pass(
    network: Network, batch: Any, sites: Iterable[str], loss: Loss | None = None, temperature: float = 1.0
) -> tuple[Tensor, Activations]:
    """Run a model and its backward pass in evaluation mode; return the logits, and activations with gradients.

    Args:
        network: the model, not compiled.
        batch: its input.
        sites: addresses of all sites of the model.
        loss: the scalar to differentiate, a function of the logits; None for minus the mean log-probability of the answers.
        temperature: divisor of the logits before ``probs``, which the loss does not read.
    """
    edits = {address: _AddZeros(torch.zeros(())) for address in sites}
    recorder = ActivationRecorder(["*"], edits)
    with torch.inference_mode(False), torch.enable_grad(), eval_mode(network), autocast_as(network, autocast_dtype(network)):
        with _captured_outputs(network) as outputs:
            logits = network(batch, recorder)
        chosen = answers(network, batch, logits)
        scalar = default_loss(network, logits, *chosen) if loss is None else loss(logits)
    if scalar.numel() != 1 or not scalar.requires_grad:
        raise ConfigError("loss: expected a single number that depends on the logits, found another value; return a function of the logits")
    leaves = {address: edit.zeros for address, edit in edits.items() if edit.zeros is not None} | {"logits": logits}
    calls = [x for each in outputs.values() for x in each]
    with autocast_as(network, None):  # as in training: products of the backward pass have the dtype of those of the forward pass
        found = torch.autograd.grad(scalar, [*leaves.values(), *calls], allow_unused=True, materialize_grads=True)
    of_sites, of_calls = dict(zip(leaves, found, strict=False)), iter(found[len(leaves) :])
    of_outputs = {path: [next(of_calls) for _ in each] for path, each in outputs.items()}
    recorded = {address: x.detach() for address, x in recorder.activations.items()} | {"logits": logits.detach()}
    a = Activations(network, batch, recorded, temperature)
    a.gradients = Gradients(a, of_sites, of_outputs, chosen if loss is None else None)
    return logits.detach(), a


def default_loss(model: Network, logits: Tensor, symbols: Tensor, mask: Tensor) -> Tensor:
    """Compute minus the mean log-probability of the answers, in nats."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    log_probs = F.logsigmoid(wide) if getattr(model.config, "multi_label", False) else wide.log_softmax(-1)
    return -(log_probs.gather(-1, symbols[..., None])[..., 0] * mask).sum() / mask.sum().clamp_min(1)


@contextmanager
def _captured_outputs(model: nn.Module) -> Iterator[dict[str, list[Tensor]]]:
    """Collect the output of every call of a module, as a tensor of the graph, by the module's path."""
    outputs = defaultdict[str, list[Tensor]](list)

    def hook(path: str, module: nn.Module, arguments: tuple[Any, ...], result: Any) -> None:
        x = result[0] if isinstance(result, tuple) else result
        if isinstance(x, Tensor) and x.requires_grad:
            outputs[path].append(x)

    handles = [module.register_forward_hook(partial(hook, path)) for path, module in model.named_modules()]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


Rule = Callable[..., Tensor | None]
"""Computes the gradient of a quantity of the module at a path; those of maps also take query heads, and query rows as a ``Part``."""


def _output(part: str = "") -> Rule:
    """Return the rule for a quantity that is the output of the module, or of a part of it."""
    return lambda g, path: g.output(join(path, part) if part else path)


def _heads_of(part: str, width: str) -> Rule:
    """Return the rule for the output of a projection, split into heads."""

    def rule(g: Gradients, path: str) -> Tensor | None:
        x = g.output(f"{path}.{part}")
        return None if x is None else x.unflatten(-1, (-1, getattr(g.a.module(path), width))).transpose(1, 2)

    return rule


def _embedding_sum(g: Gradients, path: str) -> Tensor:
    """Return the gradient before the norm of the embedding, if it has one."""
    module = g.a.module(path)
    return g.site(f"{path}.norm.x") if isinstance(module, Embedding) and module.norm is not None else g.site(f"{path}.resid")


def _positions(g: Gradients, path: str) -> Tensor | None:
    """Return the gradient of the position embeddings, summed over the rows that share them."""
    p = g.a.get(f"{path}.position")
    return None if p is None else _embedding_sum(g, path).sum_to_size(p.shape)


def _token_types(g: Gradients, path: str) -> Tensor | None:
    """Return the gradient of the token type embeddings, which are added to each token."""
    return None if g.a.get(f"{path}.token_type") is None else _embedding_sum(g, path)


def _class_token(g: Gradients, path: str) -> Tensor | None:
    return None if g.a.get(f"{path}.cls") is None else g.site(f"{path}.resid")[:, :1]


def _distillation_token(g: Gradients, path: str) -> Tensor | None:
    return None if g.a.get(f"{path}.distillation") is None else g.site(f"{path}.resid")[:, 1:2]


def _patch(g: Gradients, path: str) -> Tensor:
    """Return the gradient of the residual stream at the patches, which the tokens before them precede."""
    config: Any = g.a.model.config
    return g.site(f"{path}.resid")[:, config.n_class_tokens :]


def _patches(g: Gradients, path: str) -> Tensor:
    """Multiply by the weight of the projection."""
    d: Tensor = _patch(g, path) @ g.a.module(path).projection.weight
    return d


def _pooled(g: Gradients, path: str) -> Tensor | None:
    """Return the gradient at the site; for an embedder, whose output is the pooled vector v over its norm, that of v / |v|."""
    if "pooled" in g.sites:
        return g.site("pooled")
    v = g.a.get("pooled")
    if v is None:
        return None
    y, d = g.a["last_hidden"], g.a["last_hidden.grad"]
    return (d - y * (y * d).sum(-1, keepdim=True)) / v.norm(dim=-1, keepdim=True)


def _last_hidden(g: Gradients, path: str) -> Tensor:
    """Return the gradient of the input of the output projection; an embedder multiplies by the vectors of the other texts."""
    if isinstance(g.a.model, TextEmbedderTransformer):
        return g.a["logits.grad"] @ g.a.model.vectors(g.a.batch.target) / g.a.model.config.temperature
    with torch.enable_grad():
        h = g.a["last_hidden"].clone().requires_grad_()
        return torch.autograd.grad(g.a.model.unembedding(h), h, g.a["logits.grad"])[0]


def _log_probs(g: Gradients, path: str) -> Tensor | None:
    """Return the gradient of minus the mean log-probability of the answers; None for another loss or temperature."""
    if g.answers is None or g.a.temperature != 1.0:
        return None
    symbols, mask = g.answers
    weight = -mask.to(g.a["log_probs"].dtype) / mask.sum().clamp_min(1)
    return torch.zeros_like(g.a["log_probs"]).scatter(-1, symbols[..., None], weight[..., None])


def _probs(g: Gradients, path: str) -> Tensor | None:
    d_log = _log_probs(g, path)
    return None if d_log is None else torch.where(d_log == 0, 0.0, d_log / g.a["probs"])


def _norm_normalized(g: Gradients, path: str) -> Tensor | None:
    d_out = g.output(path)
    return None if d_out is None else d_out * g.a.module(path).weight


def _norm_mean(g: Gradients, path: str) -> Tensor | None:
    """Compute -sum(dn / scale): the mean as the norm's equation reads it, with the variance held fixed."""
    d = _norm_normalized(g, path)
    if d is None:
        return None
    if isinstance(g.a.module(path), BatchNorm):
        return -(d / g.a[f"{path}.scale"]).flatten(0, -2).sum(0)
    return -d.sum(-1) / g.a[f"{path}.scale"]


def _norm_scale(g: Gradients, path: str) -> Tensor | None:
    """Compute -sum(dn n) / scale, since n is a numerator divided by the scale."""
    d = _norm_normalized(g, path)
    if d is None:
        return None
    terms = d * g.a[f"{path}.normalized"]
    return -(terms.flatten(0, -2).sum(0) if isinstance(g.a.module(path), BatchNorm) else terms.sum(-1)) / g.a[f"{path}.scale"]


def _norm_square(g: Gradients, path: str) -> Tensor | None:
    """Divide by twice the scale, the root of variance or mean square plus eps."""
    d = _norm_scale(g, path)
    return None if d is None else d / (2 * g.a[f"{path}.scale"])


Heads = Sequence[int] | None
"""Query heads; None for all."""


def _weights(g: Gradients, path: str, heads: Heads = None, part: Part = ALL_PAIRS) -> Tensor:
    """Compute dA = dZ V^T, per head and row."""
    d_z = g.site(f"{path}.z")
    v = heads_of(g.a[f"{path}.v"], d_z.shape[1], heads)
    return heads_of(d_z, d_z.shape[1], heads)[:, :, part.queries] @ v.transpose(-2, -1).to(d_z)


def _forward_weights(g: Gradients, path: str, heads: Heads, part: Part) -> Tensor:
    """Return the attention weights of the pass, of which an exact layer computes those of the heads and rows only."""
    address = f"{path}.weights"
    if (heads, part) != (None, ALL_PAIRS) and is_exact(g.a.module(path)) and address not in g.a.recorded:
        return AttentionInputs.of(g.a, path, heads, part).weights()
    weights = g.a[address]
    return heads_of(weights, weights.shape[1], heads)[:, :, part.queries]


def _scores(g: Gradients, path: str, heads: Heads = None, part: Part = ALL_PAIRS) -> Tensor:
    """Compute dS = A (dA - rowsum(A dA)), which is 0 where a key is masked."""
    weights, d = _forward_weights(g, path, heads, part), _weights(g, path, heads, part)
    return weights * (d - (weights * d).sum(-1, keepdim=True))


def _logsumexp(g: Gradients, path: str, heads: Heads = None, part: Part = ALL_PAIRS) -> Tensor:
    """Compute -rowsum(A dA): A = exp(S - logsumexp)."""
    return -(_forward_weights(g, path, heads, part) * _weights(g, path, heads, part)).sum(-1)


def _dot_products(g: Gradients, path: str, heads: Heads = None, part: Part = ALL_PAIRS) -> Tensor | None:
    """Divide dS by sqrt(d_k); with a softcap also multiply by its derivative."""
    module = g.a.module(path)
    if not is_exact(module):
        return None
    scale, d = module.d_head**-0.5, _scores(g, path, heads, part)
    if module.softcap is not None:
        s = AttentionInputs.of(g.a, path, heads, part).dot_products() * scale
        d = d * (1 - torch.tanh(s / module.softcap).square())
    return d * scale


def _concat(g: Gradients, path: str) -> Tensor:
    return g.site(f"{path}.z").transpose(1, 2).flatten(2)


def _head_out(g: Gradients, path: str) -> Tensor | None:
    d = g.output(path)
    return None if d is None else d[:, None].expand_as(g.a[f"{path}.head_out"])


def _gate(g: Gradients, path: str) -> Tensor:
    """Compute d(hidden) up: hidden = gate * up."""
    return g.site(f"{path}.hidden") * g.a[f"{path}.up"]


def _expert_gates(g: Gradients, path: str) -> Tensor | None:
    """Compute the product of d(out) with the output of each chosen expert: out = sum_i g_i E_i(x)."""
    d_out = g.output(path)
    if d_out is None:
        return None
    tokens, d = feed_forward_input(g.a, path).flatten(0, -2), d_out.flatten(0, -2)
    chosen, found = g.a[f"{path}.chosen"], torch.zeros_like(g.a[f"{path}.gates"]).flatten(0, -2)
    for number, expert in enumerate(g.a.module(path).experts):
        rows, slot = (chosen.flatten(0, -2) == number).nonzero(as_tuple=True)
        found[rows, slot] = (expert(tokens[rows]) * d[rows]).sum(-1).to(found)
    return found.view(chosen.shape)


def _router_probs(g: Gradients, path: str) -> Tensor | None:
    """Pull the gradient of the gates back to the probabilities; None where sigmoid gates do not follow from these."""
    config, d_gates = g.a.module(path).config, _expert_gates(g, path)
    if d_gates is None or (config.scoring_func != "softmax" and not config.norm_topk_prob):
        return None
    with torch.enable_grad():
        p = g.a[f"{path}.router_probs"].clone().requires_grad_()
        picked = p.gather(-1, g.a[f"{path}.chosen"])
        gates = picked / picked.sum(-1, keepdim=True) if config.norm_topk_prob else picked
        return torch.autograd.grad(gates, p, d_gates.to(gates))[0]


def _maxout(g: Gradients, path: str) -> Tensor | None:
    """Add the gradients of each pair of units, of which only the larger has one."""
    d = g.output(f"{path}.maxout")
    return None if d is None else d.unflatten(-1, (-1, 2)).sum(-1)


def _attentional(g: Gradients, path: str) -> Tensor | None:
    """Divide the gradient before the tanh by its derivative; with input feeding the layer was called at every time step."""
    calls, y = g.outputs.get(f"{path}.output_proj", []), g.a.get(f"{path}.attentional")
    return None if y is None or not calls else torch.cat(calls, 1) / (1 - y.square())


def _recurrent_out(g: Gradients, path: str) -> Tensor | None:
    """Return the gradient of the output vectors; those of a language model are the states of its last layer."""
    d = g.output(path)
    return d if d is not None else g.sites.get(f"{path}.layers.{len(g.a.module(path).layers) - 1}.h")


def _recurrent(name: str) -> Rule:
    """Return the rule for a state or gate of a recurrent layer."""
    return lambda g, path: recurrent_gradients(g, path).get(name)


def _encoder_states(g: Gradients, path: str) -> Tensor:
    directions = [each for each in ("forward_rnn", "backward_rnn") if getattr(g.a.module(path), each) is not None]
    return torch.cat([recurrent_gradients(g, f"{path}.{each}")["h"] for each in directions], -1)


def recurrent_gradients(g: Gradients, path: str) -> dict[str, Tensor]:
    """Compute the gradients of states and gates through all later time steps, by running the cell's equations again with autograd.

    Decoders that attend at every time step expose each state before the next step reads it: there the gradient of the site contains later
    steps already, except those through the cell state of an LSTM.
    """
    module, unrolled = g.a.module(path), unroll(g.a, path)
    stack, _, rest = path.partition(".layers.")
    layer, _, direction = rest.partition(".")
    d_h, stepwise = g.site(f"{stack}.layers.{layer}.h"), isinstance(g.a.module(stack), InputFeedingDecoder | AdditiveDecoder)
    if direction:
        width = module.rnn.hidden_size
        d_h = d_h[..., :width] if direction == "forward_rnn" else d_h[..., width:]
    if unrolled.order is not None:
        d_h = d_h.take_along_dim(unrolled.order, 1)
    found = defaultdict[str, list[Tensor]](list)
    with torch.enable_grad():
        x, h, c = unrolled.x.detach().requires_grad_(), unrolled.before[:, 0], unrolled.initial_c
        for t in range(x.shape[1]):
            starts = unrolled.starts[:, t, None]
            before = unrolled.before[:, t] if stepwise else torch.where(starts, unrolled.before[:, t], h)
            step = cell(module, x[:, t], before, torch.where(starts, unrolled.initial_c, c))
            h, c = step["h"], step.get("c", c)
            for name, value in step.items():
                found[name].append(value)
        listed = [value for values in found.values() for value in values]
        flat = iter(torch.autograd.grad(torch.stack(found["h"], 1), listed, d_h.to(h), materialize_grads=True, allow_unused=True))
    gradients = {name: torch.stack([next(flat) for _ in values], 1) for name, values in found.items()}
    return gradients if unrolled.order is None else {name: d.take_along_dim(unrolled.order, 1) for name, d in gradients.items()}


_ATTENTION: dict[str, Rule] = {
    **{f"{name}_proj": _heads_of(name, "d_value" if name == "v" else "d_head") for name in "qkv"},
    "weights": _weights,
    "concat": _concat,
    "head_out": _head_out,
    "out": _output(),
}
_FEED_FORWARD: dict[str, Rule] = {"pre": _output("up"), "out": _output("down")}
_NORM: dict[str, Rule] = {"scale": _norm_scale, "normalized": _norm_normalized, "out": _output()}
_RULES: dict[str, dict[str, Rule]] = {
    "model": {"pooled": _pooled, "last_hidden": _last_hidden, "probs": _probs, "log_probs": _log_probs},
    "embedding": {"token": _embedding_sum, "position": _positions, "token_type": _token_types, "sum": _embedding_sum},
    "patch embedding": {
        "patches": _patches,
        "patch": _patch,
        "cls": _class_token,
        "distillation": _distillation_token,
        "position": _positions,
    },
    "stack": {"out": _output()},
    "norm": {"out": _output()},
    "layer norm": {"mean": _norm_mean, "variance": _norm_square, **_NORM},
    "RMS norm": {"mean_square": _norm_square, **_NORM},
    "batch norm": {"mean": _norm_mean, "variance": _norm_square, **_NORM},
    "dynamic tanh": {"normalized": _norm_normalized, "out": _output()},
    "attention": {
        **_ATTENTION,
        "dot_products": _dot_products,
        "scores": _scores,
        "masked_scores": _scores,
        "logsumexp": _logsumexp,
    },
    "approximate attention": _ATTENTION,
    "source attention": {"scores": _scores, "weights": _weights},
    "feed-forward": _FEED_FORWARD,
    "gated feed-forward": {**_FEED_FORWARD, "pre": _output("gate"), "up": _output("up"), "gate": _gate},
    "mixture of experts": {"router_probs": _router_probs, "gates": _expert_gates, "out": _output()},
    "recurrent stack": {"attentional": _attentional, "maxout": _maxout, "out": _recurrent_out},
    "recurrent encoder layer": {"h": _encoder_states},
    "recurrent layer": {name: _recurrent(name) for name in ("h", "i", "f", "g", "o", "c", "r", "z", "n", "pre")},
}
RULES = {(kind, name): rule for kind, rules in _RULES.items() for name, rule in rules.items()}
"""Rules by kind of owner and name; quantities without a rule are sites."""
