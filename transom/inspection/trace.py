"""Trace a forward pass: read any named quantity of the model that trains and answers, for chosen blocks, heads and positions."""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from transom.decoding.inference import eval_mode
from transom.errors import ConfigError
from transom.inspection.activations import Activations
from transom.inspection.certify import Certificate, certify
from transom.inspection.derive_attention import AttentionInputs
from transom.inspection.example_batch import build_example_batch
from transom.inspection.names import NamedQuantity, list_names, required_sites, select_names
from transom.layers.attention import Attention, SupportsAttentionWeights
from transom.layers.observe import ActivationRecorder
from transom.models.base import Network

Store = Literal["needed", "residuals", "qk", "all"]
"""Sites that a trace keeps: those that the names need, or more, so that other names can be asked for later."""

_RESIDUALS = ("*.resid_*", "*.resid")
STORED_SITES: dict[str, tuple[str, ...]] = {"residuals": _RESIDUALS, "qk": (*_RESIDUALS, "*.q", "*.k"), "all": ("*",)}
"""Patterns of the sites that are kept beside the needed ones."""

DEFAULT_NAMES = ("resid_post", "attn.weights", "cross.weights", "h", "pooled", "logits")
"""Names that are read if none are given, where the model has them."""


class Trace(Mapping[str, Tensor]):
    """Quantities of one forward pass by address; each is computed when it is read.

    Attributes:
        quantities: address, meaning and cost of each quantity that was asked for.
        activations: the recorded tensors, from which further quantities of the model can be read.
        heads: heads that are kept; None for all.
        positions: query positions that are kept; None for all.
        tokens: symbols of the tokens per side, "source" and "target"; empty without a tokenizer.
    """

    def __init__(
        self,
        activations: Activations,
        quantities: Sequence[NamedQuantity],
        heads: Sequence[int] | None = None,
        positions: Sequence[int] | None = None,
        tokens: Mapping[str, list[str]] | None = None,
    ) -> None:
        self.activations, self.heads, self.positions, self.tokens = activations, heads, positions, dict(tokens or {})
        self.quantities = {each.address: each for each in quantities}

    def __iter__(self) -> Iterator[str]:
        return iter(self.quantities)

    def __len__(self) -> int:
        return len(self.quantities)

    @torch.no_grad()
    def __getitem__(self, name: str) -> Tensor:
        """Return a quantity, for the heads and positions of the trace.

        Args:
            name: an address, an ending that fits one address, or a name of TransformerLens.

        Raises:
            ConfigError: the name fits no quantity of the trace, or several.
            NotRecordedError: no token reached the expert or block.
        """
        address = name if name in self.quantities else self._resolve(name)
        row = self.quantities[address].quantity
        path = address.rpartition(".")[0]
        a = self.activations
        sliced = self.heads is not None or self.positions is not None
        if sliced and hasattr(AttentionInputs, row.name) and type(a.module(path)) is Attention and a.module(path).score is None:
            x: Tensor = getattr(AttentionInputs.of(a, path, self.heads, self.positions), row.name)()
            return x
        return self._sliced(a[address], axes_of(row.axes, a[address].ndim))

    def axes(self, name: str) -> list[str]:
        """Return the names of the axes of a quantity."""
        return axes_of(self.quantities[name].quantity.axes, self[name].ndim)

    def certify(self) -> list[Certificate]:
        """Compare the attention weights of every layer in the trace with the head outputs that the kernel computed."""
        a = self.activations
        paths = dict.fromkeys(address.rpartition(".")[0] for address in self)
        layers = [path for path in paths if isinstance(a.module(path), SupportsAttentionWeights) and a.get(f"{path}.z") is not None]
        return [certify(a, path, self.heads, self.positions) for path in layers]

    def _resolve(self, name: str) -> str:
        """Return the only address that a name fits."""
        aliases = {each.alias: each.address for each in self.quantities.values() if each.alias}
        found = select_names(self.quantities, [name], aliases)
        if len(found) > 1:
            raise ConfigError(f"expected the name of one quantity, found {name!r}, which fits {len(found)}: {', '.join(found[:3])}, ...")
        return found[0]

    def _sliced(self, x: Tensor, axes: Sequence[str]) -> Tensor:
        """Keep the chosen heads and positions of a tensor with these axes."""
        for axis, name in enumerate(axes):
            chosen = {"n_heads": self.heads, "query": self.positions}.get(name)
            if chosen is not None:
                x = x.index_select(axis, torch.tensor(chosen, device=x.device))
        return x


def axes_of(axes: str, n: int) -> list[str]:
    """Return the names of the axes of a tensor with ``n`` axes; ``*`` stands for the axes of a batch.

    >>> axes_of("*axes d_ff", 3), axes_of("*axes", 3), axes_of("*axes d_ff", 2), axes_of("batch query d_model", 3)
    (['batch', 'query', 'd_ff'], ['batch', 'n_heads', 'query'], ['batch', 'd_ff'], ['batch', 'query', 'd_model'])
    """
    first, *rest = axes.split()
    if not first.startswith("*"):
        return [first, *rest]
    leading = {0: [], 1: ["batch"], 2: ["batch", "query"], 3: ["batch", "n_heads", "query"]}[n - len(rest)]
    return [*leading, *rest]


@lru_cache(maxsize=8)
def _names_of(config: Any) -> tuple[NamedQuantity, ...]:
    """List the names of a model once per configuration."""
    return tuple(list_names(config))


def trace(
    model: Any,
    inputs: Any,
    names: Sequence[str] | None = None,
    *,
    blocks: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    positions: Sequence[int] | None = None,
    temperature: float = 1.0,
    store: Store = "needed",
) -> tuple[Tensor, Trace]:
    """Run a model, and return its logits and any named quantities of the pass.

    The pass is that of the model in use, with its kernels; attention weights, which kernels do not store, are recomputed from queries and
    keys when they are read, for the chosen heads and positions only.

    Args:
        model: a run loaded by ``transom.load``, or a model.
        inputs: a text (for a loaded run; the target side of a translator is its own translation), or a batch or tensor.
        names: addresses such as ``decoder.blocks.0.attn.weights``, endings such as ``attn.weights``, patterns with ``*``, or names of
            TransformerLens; ``transom names RUN`` lists them. None reads the residual streams and attention weights of all blocks.
        blocks: indices of the blocks whose quantities are kept; None for all. Quantities outside blocks are kept.
        heads: indices of the attention heads that are kept; None for all.
        positions: indices of the query positions that are kept; None for all.
        temperature: divisor of the logits before ``probs`` and ``log_probs``.
        store: sites to keep for names that are asked for later: only those that ``names`` need, residual streams, also queries and keys,
            or all.

    Returns:
        The logits, and the trace, a mapping from address to tensor.

    Raises:
        ConfigError: a name, block, head or position does not exist; unknown names are answered with the three nearest.
    """
    network: Network = getattr(model, "model", model)
    batch = build_example_batch(model, inputs, None).batch if isinstance(inputs, str) else network.as_batch(inputs)
    modules = dict(network.named_modules(remove_duplicate=False))
    known = {each.address: each for each in _names_of(network.config)}
    aliases = {each.alias: each.address for each in known.values() if each.alias}
    default = [name for name in DEFAULT_NAMES if any(f".{address}".endswith(f".{name}") for address in known)]
    n_blocks = 1 + max((n for address in known if (n := _block_of(address)) is not None), default=-1)
    _check_indices("blocks", blocks, n_blocks)
    _check_indices("heads", heads, getattr(network.config, "n_heads", 1))
    chosen = select_names(known, names or default, aliases)
    if blocks is not None:
        chosen = [address for address in chosen if _block_of(address) in (None, *blocks)]
    owners = {address.rpartition(".")[0] for address in chosen}
    maps = [path for path in sorted(owners) if isinstance(modules[path], SupportsAttentionWeights)]
    certified = [f"{path}.{name}" for path in maps for name in ("q", "k", "v", "z")]
    sites = required_sites(network.config, [*chosen, *certified])
    recorder = ActivationRecorder([*sites, *STORED_SITES.get(store, ())])
    with torch.no_grad(), eval_mode(network):
        logits = network(batch, recorder)
    _check_indices("positions", positions, min(_n_queries(known, recorder.activations), default=1))
    activations = Activations(network, batch, recorder.activations | {"logits": logits}, temperature)
    return logits, Trace(activations, [known[address] for address in chosen], heads, positions, _token_symbols(model, batch))


def _n_queries(known: Mapping[str, NamedQuantity], recorded: Mapping[str, Tensor]) -> list[int]:
    """Return the numbers of query positions of the recorded sites; blocks with a depth router, which see some tokens only, do not count."""
    return [
        x.shape[axes.index("query")]
        for address, x in recorded.items()
        if address in known
        and "query" in (axes := axes_of(known[address].quantity.axes, x.ndim))
        and f"{address.partition('.blocks.')[0]}.blocks.{_block_of(address)}.depth.score" not in known
    ]


def trace_run(predictor: Any, text: str | None, file: Path | None, names: Sequence[str] | None, **options: Any) -> tuple[Trace, list[str]]:
    """Trace a loaded run on a text or file; return the trace, and notes for the user on the input.

    Args:
        predictor: a run loaded by ``transom.load``.
        text: the text; None to read ``file``.
        file: a text file, or an image or sound for such a model.
        names: names of quantities; None for the default of ``trace``.
        **options: further arguments of ``trace``.
    """
    example = build_example_batch(predictor, text, file)
    return trace(predictor, example.batch, names, **options)[1], example.notes


def _token_symbols(model: Any, batch: Any) -> dict[str, list[str]]:
    """Return the symbols of the first source and target row of a batch, if the model is a run with a tokenizer."""
    tokenizers = getattr(model, "tokenizers", None)
    source = tokenizers.source if tokenizers else getattr(model, "tokenizer", None)
    target = tokenizers.target if tokenizers else source
    found = dict[str, list[str]]()
    for side, tokenizer in (("source", source), ("decoder_input", target)):
        if tokenizer is not None and (sequences := getattr(batch, side, None)) is not None:
            found["source" if side == "source" else "target"] = tokenizer.symbols(sequences.tokens[0].tolist())
    return found


def _block_of(address: str) -> int | None:
    """Return the index of the block of an address; None outside the blocks.

    >>> _block_of("decoder.blocks.3.attn.q"), _block_of("decoder.norm.x")
    (3, None)
    """
    number = address.partition(".blocks.")[2].partition(".")[0]
    return int(number) if number else None


def _check_indices(name: str, indices: Sequence[int] | None, n: int) -> None:
    """Raise if an index is not from 0 to n - 1."""
    for index in indices or ():
        if not 0 <= index < n:
            raise ConfigError(f"{name}: expected indices from 0 to {n - 1}, found {index}")
