"""Compile edits for one model: check names, blocks and indices, and turn each edit into changes of sites."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from transom.errors import ConfigError
from transom.files.message import joined, phrase
from transom.inspection.derive_attention import is_exact
from transom.inspection.edits import schemas
from transom.inspection.edits.changes import (
    AttentionChange,
    AttentionEdit,
    ComputeValues,
    Counter,
    OtherPass,
    ResidualEdit,
    Selection,
    ValueEdit,
    batch_mean,
    constant,
    other_row,
    scaled,
)
from transom.inspection.edits.references import References
from transom.inspection.names import aliases_of, select_names
from transom.inspection.trace import axes_of, names_of
from transom.layers.block import PostNormBlock
from transom.layers.mixture_of_experts import MixtureOfExperts
from transom.layers.observe import SiteEdit
from transom.layers.stack import Stack
from transom.models.base import Network

Edits = dict[str, tuple[SiteEdit, ...]]
"""Edits of a model by address."""


class CompiledEdit(NamedTuple):
    """An edit that is ready to run.

    Attributes:
        config: the edit.
        counter: how often it was applied.
        sites: its change per address.
    """

    config: schemas.EditConfig
    counter: Counter
    sites: dict[str, SiteEdit]


def compile_edit(config: schemas.EditConfig, network: Network, references: References) -> CompiledEdit:
    """Compile an edit for a model.

    Raises:
        ConfigError: the model has no such block, head, neuron or tensor, or a source of values does not fit.
    """
    counter = Counter(network.device, config)
    compiler = _Compiler(network, references, counter)
    try:
        return CompiledEdit(config, counter, compiler.sites(config))
    except ConfigError as error:
        raise ConfigError(joined("", (f"{config.kind}: ", error.line))) from None


def merge_edits(outer: Mapping[str, Sequence[SiteEdit]], inner: Mapping[str, SiteEdit]) -> Edits:
    """Return both edits; at one address ``inner`` applies after ``outer``.

    All changes of the attention weights of a layer act on the same weights, before other changes of its head outputs.
    """
    merged = {address: tuple(edits) for address, edits in outer.items()}
    for address, edit in inner.items():
        before = merged.get(address, ())
        attention = [each for each in before if isinstance(each, AttentionEdit)]
        if isinstance(edit, AttentionEdit):
            changes = (*(change for each in attention for change in each.changes), *edit.changes)
            merged[address] = (AttentionEdit(edit.path, changes), *(each for each in before if not isinstance(each, AttentionEdit)))
        else:
            merged[address] = (*before, edit)
    return merged


class _Compiler:
    """Compiles one edit."""

    def __init__(self, network: Network, references: References, counter: Counter) -> None:
        self.network, self.references, self.counter = network, references, counter
        self.known = {each.address: each for each in names_of(network.config)}
        self.site_rows = {at: each for at, each in self.known.items() if each.cost == "exists" and at != "logits"}

    def sites(self, config: schemas.EditConfig) -> dict[str, SiteEdit]:
        """Return the change per address."""
        match config:
            case schemas.AblateHeads():
                return {
                    at: self._ablation(config, at, {"n_heads": config.heads})
                    for at in self._block_sites(config, f"{config.part}.z", config.part)
                }
            case schemas.AblateNeurons():
                return self._neurons(config)
            case schemas.SiteEditConfig():
                return self._named(config)
            case schemas.AttentionEditConfig():
                return self._attention(config)
            case schemas.NoResidual():
                return self._residual(config)
        raise ConfigError("expected a kind of edit, found the base schema")

    def _stack(self, config: schemas.BlockEditConfig, part: str) -> str:
        """Return the name of the stack of an edit."""
        found = [name for name in ("encoder", "decoder") if isinstance(getattr(self.network, name, None), Stack)]
        if not found:
            raise ConfigError("expected a model with Transformer blocks, found one without; use scale, set or patch on names of tensors")
        if config.stack is not None and config.stack not in found:
            listed = " / ".join(found)
            raise ConfigError(phrase("errors.stack", "stack: expected {listed}, found {found}", listed=listed, found=repr(config.stack)))
        crossed = [name for name in found if getattr(self.network, name).blocks[0].cross is not None]
        if part == "cross" and (not crossed or config.stack not in (None, *crossed)):
            raise ConfigError(f"part: expected blocks with cross-attention, found none in the {config.stack or found[0]}; leave it out")
        if config.stack is None and len(found) > 1 and part != "cross":
            raise ConfigError("stack: expected encoder or decoder for a model with both, found none; give one of them")
        return config.stack or (crossed[0] if part == "cross" else found[0])

    def _blocks(self, config: schemas.BlockEditConfig, part: str) -> dict[str, Any]:
        """Return the blocks of an edit by their path."""
        stack = self._stack(config, part)
        blocks = getattr(self.network, stack).blocks
        chosen = range(len(blocks)) if config.blocks is None else config.blocks
        _check_indices("blocks", chosen, len(blocks))
        return {f"{stack}.blocks.{index}": blocks[index] for index in chosen}

    def _block_sites(self, config: schemas.BlockEditConfig, site: str, part: str) -> list[str]:
        """Return the addresses of a site in the blocks of an edit."""
        return [f"{path}.{site}" for path in self._blocks(config, part)]

    def _axes(self, address: str) -> list[str]:
        row = self.known[address]
        return axes_of(row.quantity.axes, len(row.shape), address)

    def _selection(self, address: str, chosen: Mapping[str, Sequence[int] | None]) -> Selection:
        """Return the selection of indices of named axes; ``neurons`` is the last axis.

        Raises:
            ConfigError: the tensor has no such axis, or an index is out of range.
        """
        axes, shape, indices = self._axes(address), self.known[address].shape, dict[int, tuple[int, ...]]()
        position = next((i - len(axes) for i, name in enumerate(axes) if name in ("query", "key")), None)
        for name, numbers in chosen.items():
            if numbers is None:
                continue
            options = {"n_heads": ("n_heads", "kv_heads"), "positions": ("query", "key"), "neurons": (axes[-1],)}[name]
            axis = next((i - len(axes) for i, each in enumerate(axes) if each in options), None)
            label = {"n_heads": "heads"}.get(name, name)
            if axis is None:
                raise ConfigError(f"{label}: expected a tensor with {label}, found {address} with the axes {', '.join(axes)}")
            of = phrase("errors.for_tensor", "for {address}", address=address)
            _check_indices(label, numbers, None if name == "positions" else shape[axis], of)
            indices[axis] = tuple(numbers)
        return Selection(indices, position)

    def _neurons(self, config: schemas.AblateNeurons) -> dict[str, SiteEdit]:
        """Return the ablations of hidden units."""
        found = dict[str, SiteEdit]()
        for path, block in self._blocks(config, "ff").items():
            is_moe = isinstance(block.ff, MixtureOfExperts)
            if is_moe != (config.expert is not None):
                expected, has = ("an expert", "a mixture of experts") if is_moe else ("no expert", "one feed-forward network")
                raise ConfigError(f"expert: expected {expected}, since {path} has {has}")
            if is_moe and config.value == "resample":
                raise ConfigError("value: expected zero or mean for an expert, whose tokens have no positions, found resample")
            _check_indices("expert", () if config.expert is None else (config.expert,), len(block.ff.experts) if is_moe else 0)
            at = f"{path}.ff.experts.{config.expert}.hidden" if is_moe else f"{path}.ff.hidden"
            found[at] = self._ablation(config, at, {"neurons": config.neurons})
        return found

    def _ablation(self, config: schemas.AblationConfig, address: str, part: dict[str, Sequence[int] | None]) -> ValueEdit:
        """Return the ablation of one site."""
        selection = self._selection(address, {**part, "positions": config.positions})
        axis, compute = selection.position_axis, constant(0.0)
        if config.value != "zero" and not config.texts:
            compute = batch_mean(axis) if config.value == "mean" else other_row(config.seed)
        elif config.value != "zero":
            recorded = [self.references.record(text, [address]) for text in config.texts]
            values = [x for each in recorded if (x := each.get(address)) is not None and x.numel()]
            if not values:
                raise ConfigError(f"texts: expected texts that send a token to the owner of {address}, found none; give others")
            compute = OtherPass(values, axis, config.seed) if config.value == "resample" else constant(_mean(values, axis))
        return ValueEdit(compute, selection, self.counter)

    def _named(self, config: schemas.SiteEditConfig) -> dict[str, SiteEdit]:
        """Return the changes of named tensors."""
        wanted = select_names(self.known, [config.name], aliases_of(self.known.values()))
        addresses = [address for address in wanted if address in self.site_rows]
        if not addresses:
            row = self.known[wanted[0]]
            near = select_nearest(wanted[0], self.site_rows)
            what = "the output of the model" if row.cost == "exists" else f"{row.cost} from others"
            raise ConfigError(f"name: expected a tensor of the pass, found {wanted[0]}, which is {what}; the nearest are {near}")
        chosen = {"n_heads": config.heads, "positions": config.positions, "neurons": config.neurons}
        values = self.references.patch_values(config, addresses) if isinstance(config, schemas.Patch) else {}
        found = dict[str, SiteEdit]()
        for address in addresses:
            selection = self._selection(address, chosen)
            compute: ComputeValues
            match config:
                case schemas.Scale():
                    compute = scaled(config.factor)
                case schemas.Set():
                    compute = constant(self._set_value(config, address))
                case _:
                    compute = self._patch(config, address, values, selection)
            found[address] = ValueEdit(compute, selection, self.counter)
        return found

    def _set_value(self, config: schemas.Set, address: str) -> float | Tensor:
        """Return the value of a tensor; a list must fit its last axis."""
        width = self.known[address].shape[-1]
        if isinstance(config.value, float):
            return config.value
        if len(config.value) not in (1, width):
            raise ConfigError(f"value: expected a number, or {width} numbers for the last axis of {address}, found {len(config.value)}")
        return torch.tensor(config.value, dtype=torch.float64)

    def _patch(self, config: schemas.SiteEditConfig, address: str, values: Mapping[str, Tensor], selection: Selection) -> ComputeValues:
        """Return the values of another pass, after a check of their shape."""
        assert isinstance(config, schemas.Patch)
        origin = config.file or phrase("errors.the_text", "the text {text}", text=repr((config.text or "")[:40]))
        if address not in values:
            raise ConfigError(f"{origin}: expected the tensor {address}, found none; trace it with --names")
        x, axes, shape = values[address], self._axes(address), self.known[address].shape
        free = [name in ("batch", "query", "key") for name in axes]
        if x.ndim != len(shape) or not all(is_free or a == b for is_free, a, b in zip(free, x.shape, shape, strict=True)) or len(x) != 1:
            expected = ", ".join("1" if name == "batch" else name if f else str(n) for name, f, n in zip(axes, free, shape, strict=True))
            raise ConfigError(f"{origin}: expected {address} of shape ({expected}), found {tuple(x.shape)}; trace one whole text")
        n = 1 if selection.position_axis is None else x.shape[selection.position_axis]
        if config.positions is not None:
            sources = config.positions if config.from_positions is None else config.from_positions
            name = "positions" if config.from_positions is None else "from_positions"
            _check_indices(name, sources, n, phrase("errors.of_origin", "of {origin}", origin=origin))
            if selection.position_axis is not None:
                x = _moved(x, selection.position_axis, sources, config.positions)
        return OtherPass([x.to(self.network.device)], selection.position_axis)

    def _attention(self, config: schemas.AttentionEditConfig) -> dict[str, SiteEdit]:
        """Return the changes of attention weights."""
        change, found = partial(AttentionChange, self.counter, config.heads), dict[str, SiteEdit]()
        match config:
            case schemas.KnockOutKey():
                changes = change(queries=config.queries, keys=config.keys)
            case schemas.UnscaledScores():
                changes = change(unscaled=True)
            case _:
                changes = change(zero_after=True)
        for path, block in self._blocks(config, config.part).items():
            layer = getattr(block, config.part)
            if not is_exact(layer):
                raise ConfigError(f"expected scaled dot-product attention, found {type(layer).__name__} at {path}.{config.part}")
            _check_indices("heads", config.heads or (), layer.n_heads)
            found[f"{path}.{config.part}.z"] = AttentionEdit(config.part, (changes,))
        return found

    def _residual(self, config: schemas.NoResidual) -> dict[str, SiteEdit]:
        """Return the subtractions of the inputs of sub-layers."""
        found = dict[str, SiteEdit]()
        for path, block in self._blocks(config, config.sublayer).items():
            if block.parallel != (config.sublayer == "block"):
                expected = "block, since the block is parallel" if block.parallel else "attn, cross or ff"
                raise ConfigError(f"sublayer: expected {expected}, found {config.sublayer!r}")
            before_ff = "resid_mid" if block.cross is None else "resid_cross"
            inputs = {"attn": "resid_pre", "cross": "resid_mid", "ff": before_ff, "block": "resid_pre"}
            outputs = {"attn": "resid_mid", "cross": "resid_cross", "ff": "resid_post", "block": "resid_post"}
            site = f"{config.sublayer}_residual.norm.x" if isinstance(block, PostNormBlock) else outputs[config.sublayer]
            found[f"{path}.{site}"] = ResidualEdit(inputs[config.sublayer], self.counter)
        return found


def _moved(x: Tensor, axis: int, sources: Sequence[int], places: Sequence[int]) -> Tensor:
    """Return a tensor that has at places[i] of an axis what ``x`` has at sources[i]; the other places are not read."""
    source_of = dict(zip(places, sources, strict=True))
    return x.index_select(axis, torch.tensor([source_of.get(i, 0) for i in range(1 + max(places))], device=x.device))


def _mean(values: Sequence[Tensor], axis: int | None) -> Tensor:
    """Return the mean over the first axis and the positions of all values."""
    axes = (0,) if axis is None else (0, axis)
    total = torch.stack([each.sum(axes, keepdim=True) for each in values]).sum(0)
    return total / sum(each.shape[0] * (1 if axis is None else each.shape[axis]) for each in values)


def select_nearest(address: str, sites: Iterable[str]) -> str:
    """Return the names of up to three sites of the same module, or if it has none, of the same block."""
    path = address.rpartition(".")[0]
    sites, block = list(sites), ".".join(path.split(".")[:3])
    near = [each for each in sites if each.startswith(f"{path}.")] or [each for each in sites if each.startswith(block)] or sites
    return ", ".join(near[:3])


def _check_indices(name: str, indices: Sequence[int] | range, n: int | None, where: str = "") -> None:
    """Raise if an index is not below n."""
    for index in indices:
        if n is not None and index >= n:
            values = {"name": name, "last": str(n - 1), "found": str(index)}
            if where:
                raise ConfigError(
                    phrase("errors.indices_of", "{name}: expected indices from 0 to {last} {where}, found {found}", where=where, **values)
                )
            raise ConfigError(phrase("errors.indices", "{name}: expected indices from 0 to {last}, found {found}", **values))
