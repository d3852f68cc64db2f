"""Quantities of one forward pass: tensors that the pass recorded, and on demand all those that follow from them.

The forward pass exposes few tensors, its sites. Every other quantity of the table in ``inspection/names.py`` is a function of sites, and is
computed here with the layers' own functions when it is asked for. Expressions are those of a model in evaluation mode, without dropout.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from transom.config.architecture import TransformerConfig
from transom.data.tokenizer.special_tokens import OWN_TOKENS, SpecialTokens
from transom.data.tokenizer.tokenizer import Tokenizer
from transom.decoding.inference import eval_mode
from transom.errors import ConfigError
from transom.layers.attention import repeat_kv
from transom.layers.context import ALL_PAIRS, AttentionContext, Part
from transom.layers.embedding import to_autocast_dtype
from transom.layers.mixture_of_depths import DepthRouter, all_tokens, gather_selected
from transom.layers.mixture_of_experts import all_experts
from transom.models.base import LanguageModel, Network, SequencesLike


class NotRecordedError(ConfigError):
    """A quantity was asked for that the pass did not record, and that does not follow from what it recorded."""


GRADIENT_SUFFIX = ".grad"
"""Ending of the address of a gradient, as in ``decoder.blocks.0.attn.weights.grad``."""


class SupportsGradients(Protocol):
    """Gradients of quantities: ``inspection.gradients.Gradients``."""

    def get(self, address: str) -> Tensor | None:
        """Return the gradient of a quantity; None if it has none."""
        ...

    def of_map(self, address: str, heads: Sequence[int] | None, part: Part) -> Tensor | None:
        """Return the gradient of scores or weights of an attention layer for some query heads and rows."""
        ...


def autocast_dtype(model: Network) -> torch.dtype | None:
    """Return the dtype of matrix products in the ``torch.autocast`` context that is in force on the model's device; None without one."""
    device = model.device.type
    enabled = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if enabled else None


@contextmanager
def autocast_as(model: Network, dtype: torch.dtype | None) -> Iterator[None]:
    """Compute matrix products in ``dtype`` under ``torch.autocast`` inside the context, or with None without autocast.

    Casts of weights are not cached: in an outer autocast context, a training step would read those of a pass without gradients.
    """
    if dtype is None and autocast_dtype(model) is None:
        yield
    else:
        with torch.autocast(model.device.type, dtype, enabled=dtype is not None, cache_enabled=False):
            yield


class Activations:
    """Quantities by address, such as ``decoder.blocks.0.attn.weights``. Derived quantities are computed once and kept.

    Attributes:
        model: the model that ran, in evaluation mode.
        batch: its input.
        recorded: the recorded sites, and ``logits``.
        temperature: divisor of the logits before ``probs`` and ``log_probs``.
        autocast: dtype of matrix products under ``torch.autocast`` during the pass, in which derived quantities are computed too; None
            without autocast. Initially that of the context in which the object is created.
        sites_read: addresses in ``recorded`` that were read so far.
        head: the only query head whose queries, keys, values and head outputs were recorded; None if all were.
        gradients: gradients of quantities, whose addresses end in ``.grad``; None if no backward pass was run.
    """

    def __init__(self, model: Network, batch: Any, recorded: Mapping[str, Tensor], temperature: float = 1.0) -> None:
        self.model, self.batch, self.recorded, self.temperature = model, batch, recorded, temperature
        self.sites_read = set[str]()
        self._modules = dict(model.named_modules(remove_duplicate=False))
        self._versions = _versions(self._modules.values())
        self.autocast = autocast_dtype(model)
        self._derived: dict[str, Tensor | None] = {}
        self.gradients: SupportsGradients | None = None
        self.head: int | None = None

    def __getitem__(self, address: str) -> Tensor:
        """Return a quantity.

        Raises:
            NotRecordedError: the model has no quantity of this name, or a site that it follows from was not recorded.
            ConfigError: the weights have changed since the pass.
        """
        if (x := self.get(address)) is None:
            raise NotRecordedError(
                f"expected a recorded quantity, found {address!r}: a site that it follows from was not recorded, or no token was sent to"
                " this expert or block; name it in the trace"
            )
        return x

    def get(self, address: str) -> Tensor | None:
        """Return a quantity; None if the model has none of this name, or if a site that it follows from was not recorded.

        An expert or routed block to which no token was sent records nothing.
        """
        if address in self.recorded:
            self.sites_read.add(address)
            return self.without_padding(address, self.recorded[address])
        if address not in self._derived and address.endswith(GRADIENT_SUFFIX):
            self.require_unchanged_weights()
            self._derived[address] = None if self.gradients is None else self.gradients.get(address.removesuffix(GRADIENT_SUFFIX))
        if address not in self._derived:
            from transom.inspection.names import find_quantity  # the table lists the functions that read from this class
            from transom.inspection.rerun import rerun_sites

            path = address.rpartition(".")[0]
            quantity = find_quantity(self._modules.get(path), address)
            if quantity is None:
                return None
            self.require_unchanged_weights()
            try:
                with self.as_in_pass():
                    if quantity.derive is None:
                        self._derived |= {name: x for name, x in rerun_sites(self, address).items() if name not in self.recorded}
                        self._derived.setdefault(address, None)
                    else:
                        self._derived[address] = quantity.derive(self, path)
            except NotRecordedError:
                return None
        return self._derived[address]

    @contextmanager
    def as_in_pass(self) -> Iterator[None]:
        """Compute as the pass did inside the context: in evaluation mode, under the same autocast; without gradients."""
        with torch.no_grad(), eval_mode(self.model), autocast_as(self.model, self.autocast):
            yield

    def without_padding(self, address: str, x: Tensor) -> Tensor:
        """Drop the rows of zeros by which a batch of an expert is padded in 16-bit dtypes on a CPU; return other quantities unchanged."""
        expert = re.match(r"(.*)\.experts\.(\d+)\.", address)
        if expert is None or self.module(expert[1]).path is all_experts or (chosen := self.get(f"{expert[1]}.chosen")) is None:
            return x
        return x[: int((chosen == int(expert[2])).any(-1).sum())]

    def require_unchanged_weights(self) -> None:
        """Raise if the weights are no longer those of the pass.

        Raises:
            ConfigError: a parameter or buffer has changed since, for example by an optimizer step.
        """
        if _versions(self._modules.values()) != self._versions:
            raise ConfigError(
                "expected the weights of the traced pass, found other ones, since the model was trained in between; read all quantities"
                " before the next step, or trace again"
            )

    def of_heads(self, address: str, n_heads: int, heads: Sequence[int] | None) -> Tensor:
        """Return a recorded tensor (batch, heads, length, width) for some query heads, repeated where these share keys and values.

        Args:
            address: queries, keys, values or head outputs of an attention layer.
            n_heads: number of query heads of the layer.
            heads: query heads; None for all.
        """
        x = self[address]
        if self.head is not None:
            if list(heads or ()) != [self.head]:
                raise NotRecordedError(
                    f"{address}: expected head {self.head}, the only one that was recorded, found {heads or 'all heads'}"
                )
            return x
        return heads_of(x, n_heads, heads)

    def module(self, path: str) -> Any:
        """Return the module at a path."""
        return self._modules[path]


def find_network(model: Any, inputs: Any) -> tuple[Any, Network]:
    """Return the model of a run, which may be compiled, and the network in it.

    Raises:
        ConfigError: ``model`` is neither a run nor a model, or it has no tokenizer and ``inputs`` is a text.
    """
    given = getattr(model, "model", model)
    network = getattr(given, "_orig_mod", given)  # of a compiled model
    if not isinstance(network, Network):
        raise ConfigError(f"expected a run or a model of transom, found {type(network).__name__}; load one with transom.load")
    if isinstance(inputs, str) and network is model:
        raise ConfigError(
            "expected a batch or tensor for a model without a tokenizer, found a text; trace the run that transom.load returns"
        )
    return given, network


def tokenizer_of(model: Any, side: str) -> Tokenizer | None:
    """Return the tokenizer of a side of a run, "source" or "target"; None for a model, which has none."""
    tokenizers = getattr(model, "tokenizers", None)
    found: Tokenizer | None = getattr(tokenizers, side) if tokenizers else getattr(model, "tokenizer", None)
    return found


def special_tokens_of(model: Any, side: str) -> SpecialTokens:
    """Return the special tokens of a side of a run, "source" or "target". A model without tokenizer has those of the kind ``bpe``."""
    tokenizer = tokenizer_of(model, side)
    return OWN_TOKENS if tokenizer is None else tokenizer.special_tokens


def heads_of(x: Tensor, n_heads: int, heads: Sequence[int] | None = None) -> Tensor:
    """Select query heads of queries, keys, values or head outputs, (batch, heads, length, width).

    Keys and values are repeated for the query heads that share them.

    Args:
        x: the tensor.
        n_heads: number of query heads of the layer.
        heads: query heads; None for all.
    """
    if heads is None:
        return repeat_kv(x, n_heads)
    return x[:, [head * x.shape[1] // n_heads for head in heads]]


def _versions(modules: Iterable[nn.Module]) -> list[int]:
    """Return PyTorch's counters of the changes of all parameters and buffers."""
    tensors = (x for module in modules for x in (*module._parameters.values(), *module._buffers.values()))
    return [x._version for x in tensors if x is not None]


def parent(path: str) -> str:
    """Return the path of the module that holds the one at ``path``.

    >>> parent("decoder.blocks.0.attn")
    'decoder.blocks.0'
    """
    return path.rpartition(".")[0]


def join(path: str, name: str) -> str:
    """Return the address of quantity ``name`` of the module at ``path``, which is empty for the model itself."""
    return f"{path}.{name}" if path else name


def sequences_of(a: Activations, path: str) -> SequencesLike:
    """Return the token sequences that the embedding or stack at ``path`` reads."""
    decoder = isinstance(a.model, LanguageModel) or path.partition(".")[0] in ("target_embedding", "decoder")
    sequences: SequencesLike = a.batch.decoder_input if decoder else a.batch.source
    return sequences


def stack_input(a: Activations, stack: str) -> Tensor:
    """Return the embedded tokens that enter a stack, before dropout, in the dtype of the residual stream."""
    own = {"encoder": "source_embedding", "decoder": "target_embedding"}[stack]
    with a.as_in_pass():
        return to_autocast_dtype(a[f"{own}.resid" if hasattr(a.model, own) else "embedding.resid"])


def stream_after(a: Activations, stack: str, n_blocks: int) -> Tensor:
    """Return the residual stream of all tokens after the first ``n_blocks`` blocks of a stack.

    A block with a depth router records the selected tokens only, and changes the stream by r (Block(x) - x) at these.
    """
    if not n_blocks:
        return stack_input(a, stack)
    path = f"{stack}.blocks.{n_blocks - 1}"
    router = a.module(path).depth
    if router is None:
        return a[f"{path}.resid_post"]
    x, r, selected = stream_after(a, stack, n_blocks - 1), a[f"{path}.depth.score"], a[f"{path}.depth.selected"]
    if router.path is all_tokens:
        change = (a[f"{path}.resid_post"] - x) * selected[..., None]
    elif not selected.any():
        return x
    else:
        gathered = gather_selected(selected)
        read = x.gather(1, gathered.indices[..., None].expand(-1, -1, x.shape[-1]))  # before edits of resid_pre
        change = (a[f"{path}.resid_post"] - read) * gathered.valid[..., None]
        change = torch.zeros_like(x, dtype=change.dtype).scatter(1, gathered.indices[..., None].expand_as(change), change)
    return x + r[..., None].to(x.dtype) * change.to(x.dtype)


def depth_selected(a: Activations, path: str) -> Tensor:
    """Return True at the tokens that a depth router selects, (batch, length)."""
    router: DepthRouter = a.module(path)
    return router.select(a[f"{path}.score"], a.model.token_masks(f"{parent(path)}.attn", a.batch)[0])


def stack_output(a: Activations, stack: str) -> Tensor:
    """Return the output of a stack: the residual stream after the last block and the final norm, if it has one."""
    module = a.module(stack)
    if module.norm is not None:
        return a[f"{stack}.norm.out"]
    return stream_after(a, stack, len(module.blocks))


def attention_context(a: Activations, attention: str, part: Part = ALL_PAIRS, text: int | None = None) -> AttentionContext:
    """Return mask, bias and rotary tables of an attention layer in this pass, as dense matrices of some queries and keys.

    Args:
        a: activations of the pass.
        attention: address of the layer.
        part: queries and keys.
        text: index of the only text whose matrices are returned; None for those of all texts.
    """
    block = parent(attention)
    router = getattr(a.module(block), "depth", None)
    if not isinstance(router, DepthRouter):
        return a.model.attention_context(attention, a.batch if text is None else select_text(a.batch, text), part)
    ctx = _routed_context(a, attention, router)
    mask, bias = (None if x is None else _restrict(x, part) for x in (ctx.mask, ctx.bias))
    if text is not None:
        mask, bias = (x if x is None or len(x) == 1 else x[text : text + 1] for x in (mask, bias))
    return replace(ctx, mask=mask, bias=bias)


def select_text(batch: Any, text: int) -> Any:
    """Return a batch, or the sequences in it, of one text; what all texts share, such as a single row of positions, stays."""
    if isinstance(batch, Tensor | tuple):
        return batch if len(batch) == 1 else batch[text : text + 1]
    if not is_dataclass(batch) or isinstance(batch, type):
        return batch
    return replace(batch, **{field.name: select_text(getattr(batch, field.name), text) for field in fields(batch)})


def _restrict(x: Tensor, part: Part) -> Tensor:
    """Select queries and keys of a mask or bias, except along axes of size 1, which broadcast."""
    x = x if x.shape[-2] == 1 else x[..., part.queries, :]
    return x if x.shape[-1] == 1 else x[..., part.keys]


def _routed_context(a: Activations, attention: str, router: DepthRouter) -> AttentionContext:
    """Return the context of an attention layer in a block with a depth router."""
    block, ctx = parent(attention), a.model.attention_context(attention, a.batch)
    cross = attention.endswith(".cross")
    if router.path is all_tokens:
        visible = a[f"{block}.depth.selected"][:, None, None]
        return ctx if cross else replace(ctx, mask=visible if ctx.mask is None else ctx.mask & visible)
    token_mask = a.model.token_masks(f"{block}.attn", a.batch)[0]
    return router.attention_context(a[f"{block}.depth.score"], token_mask, ctx, cross)


def sublayer_input(a: Activations, path: str) -> Tensor:
    """Return the input of the attention layer or feed-forward network at ``path``, which is a part of a block."""
    block, _, part = path.rpartition(".")
    if hasattr(a.module(block), "norm"):  # a parallel block has one norm for all parts
        return a[f"{block}.norm.out"]
    assert isinstance(a.model.config, TransformerConfig)
    if a.model.config.norm_placement != "post":
        return a[f"{block}.{part}_residual.norm.out"]
    crossed = part == "ff" and a.module(block).cross is not None
    return a[f"{block}.{'resid_cross' if crossed else 'resid_pre' if part == 'attn' else 'resid_mid'}"]


def feed_forward_input(a: Activations, path: str) -> Tensor:
    """Return the input of a feed-forward network: the block's stream, or for an expert the tokens that are sent to it."""
    owner, _, part = path.rpartition(".")
    if part == "ff":
        return sublayer_input(a, path)
    if part == "shared":
        return sublayer_input(a, owner).flatten(0, -2)
    moe, expert = parent(owner), int(part)
    tokens, chosen = sublayer_input(a, moe).flatten(0, -2), a[f"{moe}.chosen"].flatten(0, -2)
    if a.module(moe).path is all_experts:
        return tokens
    return tokens[(chosen == expert).any(-1)]
