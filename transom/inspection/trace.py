"""Trace a forward pass: read any named quantity of a model, for chosen blocks, heads and positions."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from transom.config.architecture import ModelConfig, TransformerConfig
from transom.config.vision import VisionTransformerConfig
from transom.decoding.inference import eval_mode
from transom.errors import ConfigError
from transom.inspection.activation_sites import fake_pass
from transom.inspection.activations import (
    GRADIENT_SUFFIX,
    Activations,
    autocast_as,
    autocast_dtype,
    find_network,
    sequences_of,
    tokenizer_of,
)
from transom.inspection.attention_map import AttentionMap
from transom.inspection.certify import Certificate, certify
from transom.inspection.derive_attention import SLICED_MAPS, AttentionInputs, is_exact
from transom.inspection.example_batch import build_example_batch
from transom.inspection.gradients import Loss, gradient_pass
from transom.inspection.names import NamedQuantity, aliases_of, list_names, required_sites, select_names
from transom.inspection.trace_files import TraceRequest, read_activations, run_to_folder
from transom.layers.context import ALL_PAIRS, Part
from transom.layers.mixture_of_depths import gather_selected
from transom.layers.observe import ActivationRecorder
from transom.models.base import Network

Store = Literal["needed", "residuals", "qk", "all"]
"""Sites that a trace keeps: those that the names need, or more, so that other names can be asked for later."""

_RESIDUALS = ("*.resid_*", "*.resid")
STORED_SITES: dict[str, tuple[str, ...]] = {"residuals": _RESIDUALS, "qk": (*_RESIDUALS, "*.q", "*.k", "*.depth.score"), "all": ("*",)}
"""Patterns of the sites that are kept beside the needed ones."""

WITHOUT_GRADIENT = (".chosen", ".selected")
"""Endings of quantities that are whole numbers or truth values."""

DEFAULT_NAMES = ("resid_post", "attn.weights", "cross.weights", "h", "pooled", "logits")
"""Names that are read if none are given, where the model has them."""

CLASS_TOKENS = ("[class]", "[distillation]")
"""Symbols of the tokens before the patches of an image."""


class Trace(Mapping[str, Tensor]):
    """Quantities of one forward pass by address; each is computed when it is read, with the weights of the pass.

    In a block with a depth router the positions are those of the selected tokens; ``token_positions`` gives those in the text.

    Attributes:
        quantities: address, meaning and cost of each quantity.
        activations: the recorded tensors, from which further quantities of the model can be read.
        idle: addresses that were asked for but have no value: no token was sent to their expert or block, or the gradient does not exist.
        heads: query heads that are kept; None for all. Keys and values are kept of all heads.
        positions: query positions that are kept, in source and target; None for all.
        tokens: symbols of the tokens of the first row per side, "source" and "target"; empty without a tokenizer.
        edited: attention layers whose head outputs were edited (``transom.edits``); ``certify`` leaves them out. Their ``weights`` are
            those after the edit, their scores those before it.
    """

    def __init__(
        self,
        activations: Activations,
        quantities: Sequence[NamedQuantity],
        heads: Sequence[int] | None = None,
        positions: Sequence[int] | None = None,
        tokens: Mapping[str, list[str]] | None = None,
        edited: Iterable[str] = (),
    ) -> None:
        self.activations, self.heads, self.positions, self.tokens = activations, heads, positions, dict(tokens or {})
        self.edited = frozenset(edited)
        self.idle = [each.address for each in quantities if _is_idle(activations, each.address)]
        self.quantities = {each.address: each for each in quantities if each.address not in self.idle}
        for address, each in self.quantities.items():
            if positions is not None and "query" in axes_of(each.quantity.axes, len(each.shape), address):
                _check_indices("positions", positions, _n_positions(activations, address), f" for {address}")

    def __iter__(self) -> Iterator[str]:
        return iter(self.quantities)

    def __len__(self) -> int:
        return len(self.quantities)

    def __contains__(self, name: object) -> bool:
        return name in self.quantities

    def __getitem__(self, name: str) -> Tensor:
        """Return a quantity, for the heads and positions of the trace.

        Args:
            name: an address, an ending that fits one address, or a name of TransformerLens.

        Raises:
            ConfigError: the name fits no quantity of the trace, or several, or the weights have changed since the pass.
        """
        address = name if name in self.quantities else self._resolve(name)
        if (self.heads or self.positions) and (part := self._part_of_map(address)) is not None:
            return part
        x = self.activations[address]
        for axis, axis_name in enumerate(self.axes(address, x.ndim)):
            if axis_name == "n_heads" and self.heads is not None:
                x = x.index_select(axis, torch.tensor(self.heads, device=x.device))
            if axis_name == "query" and self.positions is not None:
                x = x.index_select(axis, torch.tensor(self.positions, device=x.device))
        return x

    def _part_of_map(self, address: str) -> Tensor | None:
        """Compute scores, weights or their gradients for the heads and positions of the trace only; None for other quantities."""
        a, forward = self.activations, address.removesuffix(GRADIENT_SUFFIX)
        path, _, name = forward.rpartition(".")
        if name not in SLICED_MAPS or not is_exact(a.module(path)) or address in a.recorded:
            return None
        a.require_unchanged_weights()
        part = ALL_PAIRS if self.positions is None else Part(queries=list(self.positions))
        if forward != address:
            return None if a.gradients is None else a.gradients.of_map(forward, self.heads, part)
        with a.as_in_pass():
            x: Tensor = getattr(AttentionInputs.of(a, path, self.heads, part), name)()
        return x

    def axes(self, name: str, n: int | None = None) -> list[str]:
        """Return the names of the axes of a quantity, which has ``n`` axes; None to compute it."""
        address = name if name in self.quantities else self._resolve(name)
        return axes_of(self.quantities[address].quantity.axes, self[address].ndim if n is None else n, address)

    def token_positions(self, name: str) -> Tensor:
        """Return where in the batch the tokens of a quantity with an axis ``query`` or ``tokens`` are.

        In a block with a depth router the axis ``query`` has the selected tokens of each text. The axis ``tokens`` of an expert has the
        tokens that were sent to it.

        Returns:
            Text and position of each token, (batch, query, 2) or (tokens, 2); position -1 where a text has fewer selected tokens.

        Raises:
            ConfigError: the quantity has neither axis.
        """
        address = name if name in self.quantities else self._resolve(name)
        each = self.quantities[address]
        axes = axes_of(each.quantity.axes, len(each.shape), address)
        if "query" not in axes and "tokens" not in axes:
            raise ConfigError(
                f"expected a quantity with an axis query or tokens, found {name!r}, whose axes are {', '.join(axes)}; name another"
            )
        found = _token_positions(self.activations, address)
        return found if self.positions is None or "query" not in axes else found[:, list(self.positions)]

    def map(self, attention: str, head: int, text: int = 0) -> AttentionMap:
        """Return the attention weights of one head, which are computed tile by tile: for long texts.

        Args:
            attention: address of the layer, such as ``decoder.blocks.0.attn``; its queries, keys, values and outputs must be recorded.
            head: index of the query head.
            text: index of the text in the batch.
        """
        return AttentionMap(self.activations, attention, head, text)

    def certify(self) -> list[Certificate]:
        """Compare the attention weights of every layer in the trace with the head outputs that the kernel computed.

        A layer belongs to the trace if its scores or weights do.
        """
        owners = [path for path in map_owners(self.quantities) if path not in self.edited]
        return [certify(self.activations, path, self.heads, self.positions) for path in owners]

    def _resolve(self, name: str) -> str:
        """Return the only address of the trace that a name fits."""
        found = select_names(self.quantities, [name], aliases_of(self.quantities.values()), "of this trace")
        if len(found) > 1:
            shown = ", ".join(found[:3]) + (", ..." if len(found) > 3 else "")
            raise ConfigError(f"expected the name of one quantity, found {name!r}, which fits {len(found)}: {shown}")
        return found[0]


def _is_idle(a: Activations, address: str) -> bool:
    """Return whether a quantity belongs to an expert or routed block to which no token was sent, or is a gradient that does not exist."""
    if address.endswith(GRADIENT_SUFFIX):
        path, _, name = address.removesuffix(GRADIENT_SUFFIX).rpartition(".")
        whole_map = name in SLICED_MAPS and is_exact(a.module(path))  # follows from the head outputs, and may be large
        return a.get(f"{path}.z{GRADIENT_SUFFIX}" if whole_map else address) is None
    block = re.match(r"(.*\.blocks\.\d+)\.", address)
    if block is None or ".depth." in address:
        return False
    routed = getattr(a.module(block[1]), "depth", None) is not None and not bool(a[f"{block[1]}.depth.selected"].any())
    expert = re.match(r"(.*)\.experts\.(\d+)\.", address)
    return routed or (expert is not None and not bool((a[f"{expert[1]}.chosen"] == int(expert[2])).any()))


def _n_positions(a: Activations, address: str) -> int:
    """Return the number of query positions of a quantity; in a routed block, of the selected tokens."""
    if "." not in address:
        return a["logits"].shape[1]
    if isinstance(a.model.config, VisionTransformerConfig):
        return a.model.config.n_positions
    block = _block_of(address)
    routed = f"{address.partition('.blocks.')[0]}.blocks.{block}" if block is not None else ""
    if routed and getattr(a.module(routed), "depth", None) is not None and ".depth." not in address:
        return int(a[f"{routed}.depth.selected"].sum(1).max())
    return sequences_of(a, address).tokens.shape[1]


def _token_positions(a: Activations, address: str) -> Tensor:
    """Return text and position of the tokens of a quantity: (batch, query, 2), or for experts (tokens, 2)."""
    places = torch.arange(_n_positions(a, address), device=a.model.device).expand(len(a["logits"]), -1)
    block = re.match(r"(.*\.blocks\.\d+)\.", address)
    if block is not None and ".depth." not in address and getattr(a.module(block[1]), "depth", None) is not None:
        selected = gather_selected(a[f"{block[1]}.depth.selected"])
        places = selected.indices.masked_fill(~selected.valid, -1)
    found = torch.stack([torch.arange(len(places), device=places.device)[:, None].expand_as(places), places], -1)
    if (expert := re.match(r"(.*)\.experts\.(\d+)\.", address)) is not None:
        return found[(a[f"{expert[1]}.chosen"] == int(expert[2])).any(-1)]
    return found.flatten(0, 1) if ".shared." in address else found


def map_owners(addresses: Iterable[str]) -> list[str]:
    """Return the paths of the attention layers whose scores or weights are among the addresses."""
    return list(dict.fromkeys(path for path, _, name in (each.rpartition(".") for each in addresses) if name in SLICED_MAPS))


def axes_of(axes: str, n: int, address: str = "") -> list[str]:
    """Return the names of the axes of a tensor with ``n`` axes; ``*`` stands for the axes of a batch.

    >>> axes_of("*axes d_ff", 3), axes_of("*axes", 3), axes_of("batch query d_model", 3)
    (['batch', 'query', 'd_ff'], ['batch', 'n_heads', 'query'], ['batch', 'query', 'd_model'])
    >>> axes_of("*axes d_ff", 2, "decoder.blocks.0.ff.experts.1.pre"), axes_of("*axes width", 4, "decoder.blocks.0.attn.k_norm.x")
    (['tokens', 'd_ff'], ['batch', 'kv_heads', 'key', 'width'])
    """
    first, *rest = axes.split()
    if not first.startswith("*"):
        return [first, *rest]
    queries = ["kv_heads", "key"] if ".k_norm." in address else ["n_heads", "query"]
    one = "tokens" if ".experts." in address or ".shared." in address else "batch"
    leading: dict[int, list[str]] = {0: [], 1: [one], 2: ["batch", "query"], 3: ["batch", *queries]}
    if n < len(rest) or (n == 1 and not rest):  # statistics of batch norm, per feature
        return ["d_model"][:n]
    return [*leading[n - len(rest)], *rest]


def edited_layers(network: Network) -> list[str]:
    """Return the addresses of the attention layers whose head outputs the edits in force change."""
    return [at.removesuffix(".z") for at in network.edits or () if at.endswith((".attn.z", ".cross.z"))]


@lru_cache(maxsize=8)
def names_of(config: Any) -> tuple[NamedQuantity, ...]:
    """List the names of a model once per configuration."""
    return tuple(list_names(config))


@lru_cache(maxsize=64)
def _required_sites(config: Any, addresses: tuple[str, ...]) -> tuple[str, ...]:
    """List the sites of some quantities once per configuration."""
    return tuple(required_sites(config, addresses))


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
    loss: Loss | None = None,
    folder: str | Path | None = None,
) -> tuple[Tensor, Trace]:
    """Run a model, and return its logits and any named quantities of the pass.

    The model runs with its usual kernels. They do not store attention weights, which are recomputed from queries and keys when they are
    read, for the chosen heads and positions only; ``Trace.certify`` compares them with the head outputs of the kernels.

    Args:
        model: a run loaded by ``transom.load``, or a model, compiled or not.
        inputs: a text (for a loaded run; the target side of a translator is its own translation), or a batch or tensor.
        names: addresses such as ``decoder.blocks.0.attn.weights``, endings such as ``attn.weights``, patterns with ``*``, or names of
            TransformerLens; ``transom names RUN`` lists them. With ``.grad`` appended, the gradient of the loss with respect to the
            quantity. None reads the residual streams and attention weights of all blocks.
        blocks: indices of the blocks whose quantities are kept; None for all. Quantities outside blocks are kept.
        heads: indices of the query heads that are kept; None for all.
        positions: indices of the query positions that are kept, in source and target; None for all.
        temperature: divisor of the logits before ``probs`` and ``log_probs``, above 0.
        store: sites to keep for names that are asked for later: only those that ``names`` need, residual streams, also queries and keys,
            or all.
        loss: the scalar to differentiate for names that end in ``.grad``, a function of the logits. By default minus the mean
            log-probability of the next tokens, or of the most likely class or symbol in models that do not generate.
        folder: folder to which the sites are written during the pass, instead of keeping them in memory; ``open_trace`` reads it again.

    Returns:
        The logits, and the trace, a mapping from address to tensor.

    Raises:
        ConfigError: a name, block, head or position does not exist; the message suggests the nearest names.
        DataError: a text exceeds the context window.
    """
    given, network = find_network(model, inputs)
    batch = build_example_batch(model, inputs, None, "refuse").batch if isinstance(inputs, str) else network.as_batch(inputs)
    if temperature <= 0:
        raise ConfigError(f"temperature: expected a number above 0, found {temperature:g}")
    known = {each.address: each for each in names_of(network.config)}
    chosen = _choose(known, names, blocks)
    _check_indices("heads", heads, _n_heads(network.config, chosen))
    _check_indices("positions", positions, None)
    certified = [f"{path}.{name}" for path in map_owners(chosen) for name in ("weights", "v", "z")]
    routed = [address for address in known if address.endswith((".depth.score", ".ff.router"))]
    edited = edited_layers(network)
    weights = [f"{path}.weights" for path in edited if f"{path}.weights" in chosen]
    request = TraceRequest.of(network, chosen, heads, positions, temperature, token_symbols(model, batch), edited)
    if any(address.endswith(GRADIENT_SUFFIX) for address in chosen):  # runs the uncompiled model
        if folder is not None:
            raise ConfigError(
                "folder: expected names without .grad, found gradients, which are kept in memory; trace them without a folder"
            )
        all_sites = [each.address for each in known.values() if each.cost == "exists"]
        logits, activations = gradient_pass(network, batch, all_sites, loss, temperature)
    else:
        sites = _required_sites(network.config, (*chosen, *certified))
        recorder = ActivationRecorder([*sites, *routed, *weights, *STORED_SITES.get(store, ())])
        with torch.no_grad(), eval_mode(network), autocast_as(network, autocast_dtype(network)):
            if folder is not None:
                logits, activations = run_to_folder(given, network, batch, recorder.patterns, Path(folder), request)
            else:
                logits = given(batch, recorder)
                activations = Activations(network, batch, recorder.activations | {"logits": logits}, temperature)
    return logits, _trace_of(activations, [_named(known, address) for address in chosen], request)


def _trace_of(activations: Activations, quantities: Sequence[NamedQuantity], request: TraceRequest) -> Trace:
    """Build the trace of quantities that a request describes."""
    return Trace(activations, quantities, request.heads, request.positions, request.tokens, request.edited)


def open_trace(model: Any, folder: str | Path) -> Trace:
    """Open a trace that ``trace`` wrote to a folder, also one that a crash cut off.

    Args:
        model: the run or model that was traced, with the same weights.
        folder: the folder.

    Returns:
        The trace that ``trace`` returned: the same quantities, heads, positions, temperature and edited layers. After a crash, those of its
        quantities that follow from what was written. ``Trace.activations`` has all other quantities that follow.

    Raises:
        CheckpointError: the folder holds no trace, or one of other weights or of another format.
    """
    _, network = find_network(model, None)
    activations, index = read_activations(network, Path(folder))
    request, known = index.request, {each.address: each for each in names_of(network.config)}
    names = request.names if index.complete else _that_follow(network.config, activations.recorded, request.names)
    return _trace_of(activations, [known[name] for name in names], request)


def _that_follow(config: Any, recorded: Iterable[str], names: Iterable[str]) -> list[str]:
    """Return the addresses of the quantities that follow from the recorded sites."""
    kept = set(recorded)
    with fake_pass(config) as a:
        stored = Activations(a.model, a.batch, {address: x for address, x in a.recorded.items() if address in kept})
        return [name for name in names if stored.get(name) is not None]


def _named(known: Mapping[str, NamedQuantity], address: str) -> NamedQuantity:
    """Return the row of a quantity, or of its gradient, which has the same shape and axes."""
    if not address.endswith(GRADIENT_SUFFIX):
        return known[address]
    each = known[address.removesuffix(GRADIENT_SUFFIX)]
    row = each.quantity._replace(name=each.quantity.name + GRADIENT_SUFFIX, formula=f"gradient of: {each.quantity.formula}", alias="")
    return each._replace(address=address, quantity=row, cost="recomputed", alias="")


def _choose(known: Mapping[str, NamedQuantity], names: Sequence[str] | None, blocks: Sequence[int] | None) -> list[str]:
    """Return the addresses that are asked for.

    Raises:
        ConfigError: a name or block does not exist, or no quantity has both.
    """
    n_blocks = 1 + max((n for address in known if (n := _block_of(address)) is not None), default=-1)
    if blocks is not None and not n_blocks:
        raise ConfigError("blocks: expected a model with blocks, found one without; leave them out")
    _check_indices("blocks", blocks, n_blocks)
    if names is None:
        names = [name for name in DEFAULT_NAMES if any(f".{address}".endswith(f".{name}") for address in known)]
    found = select_names(known, [name for name in names if not name.endswith(GRADIENT_SUFFIX)], aliases_of(known.values()))
    for name in (name for name in names if name.endswith(GRADIENT_SUFFIX)):
        smooth = [each for each in select_names(known, [name.removesuffix(GRADIENT_SUFFIX)], {}) if not each.endswith(WITHOUT_GRADIENT)]
        if not smooth:
            raise ConfigError(
                f"expected a quantity with a gradient, found {name!r}, which belongs to whole numbers or truth values; leave it out"
            )
        found += [each + GRADIENT_SUFFIX for each in smooth]
    found = list(dict.fromkeys(found))
    chosen = [address for address in found if blocks is None or _block_of(address) in (None, *blocks)]
    if not chosen:
        raise ConfigError(
            f"blocks: expected blocks with {', '.join(names) or 'a name'}, found {list(blocks or ())}; transom names RUN --each"
        )
    return chosen


def trace_run(
    predictor: Any,
    text: str | None,
    file: Path | None,
    names: Sequence[str] | None,
    target: str | None = None,
    batch: Any = None,
    **options: Any,
) -> tuple[Trace, list[str]]:
    """Trace a loaded run on a text, file or batch; return the trace, and notes for the user on the input.

    Args:
        predictor: a run loaded by ``transom.load``.
        text: the text; None to read ``file``.
        file: a text file, or an image or sound for such a model.
        names: names of quantities; None for the default of ``trace``.
        target: the target text of a translator; None for its own translation.
        batch: a batch of one row, in place of text, file and target.
        **options: further arguments of ``trace``.
    """
    if batch is not None:
        return trace(predictor, batch, names, **options)[1], []
    example = build_example_batch(predictor, text, file, target=target)
    return trace(predictor, example.batch, names, **options)[1], example.notes


def token_symbols(model: Any, batch: Any) -> dict[str, list[str]]:
    """Return the symbols of the first source and target row of a batch, if the model is a run with a tokenizer."""
    found = dict[str, list[str]]()
    for side, name in (("source", "source"), ("target", "decoder_input")):
        tokenizer = tokenizer_of(model, side)
        if tokenizer is not None and (sequences := getattr(batch, name, None)) is not None:
            found[side] = tokenizer.symbols(sequences.tokens[0].tolist())
    return found


def _block_of(address: str) -> int | None:
    """Return the index of the block of an address; None outside the blocks.

    >>> _block_of("decoder.blocks.3.attn.q"), _block_of("decoder.norm.x")
    (3, None)
    """
    number = address.partition(".blocks.")[2].partition(".")[0]
    return int(number) if number else None


def _n_heads(config: ModelConfig, addresses: Iterable[str]) -> int:
    """Return the number of heads of the stacks of some quantities, the smaller one if they differ; 1 without heads."""
    if not isinstance(config, TransformerConfig):
        return 1
    stacks = {address.partition(".")[0] for address in addresses} & {"encoder", "decoder"}
    return min((config.of_stack(stack).n_heads for stack in stacks), default=config.n_heads)


def _check_indices(name: str, indices: Sequence[int] | None, n: int | None, where: str = "") -> None:
    """Raise if there are no indices, or one is not from 0 to n - 1; with None, any number from 0 is accepted."""
    if indices is not None and not indices:
        raise ConfigError(f"{name}: expected at least one index, found none; leave out {name} to keep all")
    for index in indices or ():
        if index < 0 or (n is not None and index >= n):
            raise ConfigError(f"{name}: expected indices from 0{'' if n is None else f' to {n - 1}'}{where}, found {index}")
