"""Import a model of the transformers library as a run folder of transom."""

import math
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from transom.checkpoints.run_files import CONFIG, WEIGHTS
from transom.checkpoints.run_folder import RunFolder
from transom.checkpoints.tensor_stream import write_tensors
from transom.checkpoints.tensors import Origin, TensorSpec, require_finite
from transom.config.architecture import ModelConfig
from transom.errors import CheckpointError, ConfigError
from transom.exchange.config_rows import OWN_OUTPUT
from transom.exchange.family import Family, find_family
from transom.exchange.foreign_folder import ForeignFolder
from transom.exchange.tensor_rows import Configs, TensorGroup, group_tensors
from transom.models.build import build_uninitialized
from transom.planning.parameters import count_parameters, position_table_error


@dataclass(frozen=True)
class ImportedModel:
    """A foreign model whose files have been checked, before its weights are read.

    Attributes:
        source: the foreign folder.
        family: its family.
        config: configuration of our model.
        groups: correspondence of the tensors.
        stored: foreign tensors by the names of the family's table.
        like: tensors of our model by name, without values.
        notes: lines on what is not carried over.
    """

    source: ForeignFolder
    family: Family
    config: ModelConfig
    groups: list[TensorGroup]
    stored: Mapping[str, str]
    like: Mapping[str, Tensor]
    notes: list[str] = field(default_factory=list)

    @property
    def n_parameters(self) -> int:
        """Number of parameters."""
        return count_parameters(self.config).total


def open_foreign_model(source: ForeignFolder, from_data: Mapping[str, Any]) -> ImportedModel:
    """Match a folder's configuration and tensors with those of a model of transom, without reading any weights.

    Args:
        source: the folder.
        from_data: our configuration fields that other files of the folder determine.

    Raises:
        CheckpointError: transom cannot express the model, or tensors are missing, superfluous or of another shape.
    """
    family = find_family(source.config)
    tied_copy, own_output = _output_matrices(source, family)
    config = family.read_config({**source.config, OWN_OUTPUT: own_output}, from_data)
    found = sum(math.prod(tensor.spec.shape) for tensor in source.tensors.values())
    try:
        asked = count_parameters(config).total
    except ConfigError as error:
        raise CheckpointError(f"{source.path / CONFIG}: {error}") from None
    if asked > found or (problem := position_table_error(config)) is not None:
        reason = f"expected the {asked:,} parameters of {CONFIG} in the weights, found {found:,}" if asked > found else problem
        raise CheckpointError(f"{source.path}: {reason}; the files belong to different models")
    with torch.device("meta"):
        like = build_uninitialized(config).state_dict()
    groups = group_tensors(family.tensors, list(like), config)
    stored = _match_names(source, family, groups, tied_copy)
    configs = Configs(config, source.config)
    for group in groups:
        _check_shapes(source, stored, group, like, configs)
    unread = family.unread_fields(source.config)
    notes = [f"not carried over: {', '.join(unread)}"] if unread else []
    return ImportedModel(source, family, config, groups, stored, like, notes)


def _match_names(source: ForeignFolder, family: Family, groups: list[TensorGroup], tied_copy: str | None) -> dict[str, str]:
    """Return the stored name of each foreign tensor, with or without the family's prefix.

    Raises:
        CheckpointError: a tensor is missing, or the folder has tensors that the family does not know.
    """
    names = {_present_name(name): name for name in source.tensors}
    if family.prefix and not any(name.startswith(family.prefix) for name in names):
        names = {family.prefix + name: name for name in names} | names
    wanted = [name for group in groups for name in group.foreign]
    if missing := [name for name in wanted if name not in names]:
        raise CheckpointError(
            f"{source.path}: expected the {len(wanted):,} tensors of a {family.architecture} with this {CONFIG}, found"
            f" {len(source.tensors):,} without {missing[0][:200]!r}; the files belong to different models"
        )
    used = {names[name] for name in wanted}
    extra = [name for name in source.tensors if name not in used and name != tied_copy and not family.is_derived(name)]
    if extra:
        raise CheckpointError(
            f"{source.path}: expected the {len(wanted):,} tensors of a {family.architecture} with this {CONFIG}, found {len(extra):,} more,"
            f" such as {extra[0][:200]!r}; transom cannot express this variant of the model"
        )
    return {name: names[name] for name in wanted}


def _present_name(name: str) -> str:
    """Return the name of a tensor in present versions of the library; the first BERT models call gain and shift gamma and beta."""
    return re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name))


def _output_matrices(source: ForeignFolder, family: Family) -> tuple[str | None, bool]:
    """Return the stored name of an output matrix that repeats the embedding, and whether there is one that differs from it."""
    embedding, output = (
        name and next((n for n in (name, name.removeprefix(family.prefix)) if n in source.tensors), None) for name in family.output_names()
    )
    if embedding is None or output is None:
        return None, output is not None
    if source.tensors[embedding].spec == source.tensors[output].spec and torch.equal(
        source.read_tensor(embedding), source.read_tensor(output)
    ):
        return output, False
    return None, True


def _check_shapes(
    source: ForeignFolder, stored: Mapping[str, str], group: TensorGroup, like: Mapping[str, Tensor], configs: Configs
) -> None:
    expected = group.how.write([like[name] for name in group.ours], configs)
    for name, tensor in zip(group.foreign, expected, strict=True):
        found = source.tensors[stored[name]]
        if found.spec.shape != tuple(tensor.shape):
            raise CheckpointError(
                f"{found.path}: tensor {stored[name][:200]!r}: expected shape {tuple(tensor.shape)} for this {CONFIG}, found"
                f" {found.spec.shape}; the files belong to different models"
            )


def write_weights(model: ImportedModel, folder: RunFolder, notify: Callable[[int, int], None] = lambda done, total: None) -> int:
    """Convert the weights one tensor at a time into ``model.safetensors`` of a new run folder; return their number of bytes.

    Args:
        model: the foreign model.
        folder: the run folder, with its ``config.json`` written.
        notify: called with the number of bytes written and their total.

    Raises:
        CheckpointError: a weight is NaN or infinite.
        DiskError: the disk is full, or the folder cannot be written.
    """
    like, configs = model.like, Configs(model.config, model.source.config)
    group_of = {name: group for group in model.groups for name in group.ours}
    specs: dict[str, TensorSpec] = {}
    for group in model.groups:
        stored = [model.source.tensors[model.stored[name]].spec for name in group.foreign]
        meta = [torch.empty(spec.shape, dtype=spec.dtype, device="meta") for spec in stored]
        parts = group.how.read(meta, [like[name] for name in group.ours], configs)
        specs |= {name: TensorSpec.of(part) for name, part in zip(group.ours, parts, strict=True)}
    total, done = sum(spec.n_bytes for spec in specs.values()), 0
    kept: dict[str, Tensor] = {}

    def produce(name: str) -> Tensor:
        nonlocal done
        if name not in kept:
            group = group_of[name]
            foreign = []
            for each in group.foreign:
                stored = model.stored[each]
                foreign.append(model.source.read_tensor(stored))
                require_finite(model.source.tensors[stored].path, {stored: foreign[-1]})
            kept.update(zip(group.ours, group.how.read(foreign, [like[each] for each in group.ours], configs), strict=True))
        done += specs[name].n_bytes
        notify(done, total)
        return kept.pop(name)

    run = folder.run_id
    assert run is not None, "config.json is written first"
    write_tensors(folder.path / WEIGHTS, specs, produce, Origin(run, 0))
    return total


def new_run_id() -> str:
    """Return a new run id of 32 hexadecimal digits."""
    return uuid.uuid4().hex
