"""Export a model as a folder of the transformers library."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from transom.checkpoints.tensor_stream import write_foreign_tensors
from transom.checkpoints.tensors import TensorSpec
from transom.config.architecture import ModelConfig
from transom.errors import ConfigError
from transom.exchange.config_rows import Fields
from transom.exchange.family import Candidate, Family, nearest_families
from transom.exchange.foreign_folder import INDEX_FILE, WEIGHTS_FILE
from transom.exchange.tensor_rows import Configs, TensorGroup, group_tensors
from transom.files.atomic_io import json_bytes, write_file
from transom.models.build import build_uninitialized

MAX_SHARD_BYTES = 5_000_000_000
"""Size from which on the weights are split into several files, as ``save_pretrained`` does."""


def choose_family(config: ModelConfig, asked: str | None = None) -> Family:
    """Return the foreign family that equals a model.

    Args:
        config: configuration of the model.
        asked: ``model_type`` of the family; None for the one that fits and adds the fewest parameters.

    Raises:
        ConfigError: no family equals the model, or not the one asked for; the message names the components that stand in the way.
    """
    candidates = nearest_families(config)
    if asked is not None:
        known = sorted({candidate.family.model_type for candidate in candidates})
        candidates = [candidate for candidate in candidates if candidate.family.model_type == asked]
        if not candidates:
            raise ConfigError(
                f"--as: expected one of {', '.join(known) or 'no family'}, found {asked!r:.80}; leave it out to choose by fit"
            )
    if not candidates:
        kind = config.kind
        raise ConfigError(f"no model type of the transformers library corresponds to model.kind = {kind!r}; the run folder is its format")
    best = candidates[0]
    if best.obstacles:
        raise ConfigError(obstacle_message(best))
    return best.family


def obstacle_message(candidate: Candidate) -> str:
    """Return a sentence on what stands in the way of an export as a family, and the recipe lines that remove it."""
    shown = "; ".join(map(str, candidate.obstacles[:4]))
    more = len(candidate.obstacles) - 4
    return (
        f"no model type of the transformers library equals this model; nearest is {candidate.family.model_type}, and in the way stand"
        f" {shown}{f' and {more} more' if more > 0 else ''}; train with these lines of the recipe changed, or keep the run folder as format"
    )


@dataclass(frozen=True)
class ForeignModel:
    """A model of ours in foreign terms.

    Attributes:
        family: the family.
        config: fields of ``config.json`` on which the model's outputs depend.
        tensors: foreign tensors by name, each computed when it is asked for.
        specs: their dtypes and shapes.
    """

    family: Family
    config: Fields
    tensors: Mapping[str, Callable[[], Tensor]]
    specs: Mapping[str, TensorSpec]


def convert_model(config: ModelConfig, weights: Mapping[str, Tensor], family: Family) -> ForeignModel:
    """Convert a model to a family that equals it. Biases that the family has and the model lacks are zeros.

    Args:
        config: configuration of the model.
        weights: its state dict; tied tensors under one name.
        family: a family without obstacles.
    """
    foreign_config = family.write_config(config)
    target = family.target_config(config)
    with torch.device("meta"):
        like = build_uninitialized(target).state_dict()
    dtype = next(iter(weights.values())).dtype
    configs = Configs(target, foreign_config)
    groups = group_tensors(family.tensors, list(like), target)

    def ours(name: str, meta: bool) -> Tensor:
        if meta:
            return like[name].to(weights[name].dtype if name in weights else dtype)
        return weights[name] if name in weights else torch.zeros(like[name].shape, dtype=dtype)

    def foreign(group: TensorGroup, n: int, meta: bool = False) -> Tensor:
        return group.how.write([ours(name, meta) for name in group.ours], configs)[n]

    numbered = [(name, group, n) for group in groups for n, name in enumerate(group.foreign)]
    tensors = {name: partial(foreign, group, n) for name, group, n in numbered}
    specs = {name: TensorSpec.of(foreign(group, n, meta=True)) for name, group, n in numbered}
    return ForeignModel(family, foreign_config, tensors, specs)


def write_foreign_weights(model: ForeignModel, folder: Path, notify: Callable[[int, int], None] = lambda done, total: None) -> None:
    """Write the weights as ``model.safetensors``, or as several files with an index if they are large.

    Args:
        model: the model.
        folder: an existing folder.
        notify: called with the number of bytes written and their total.

    Raises:
        DiskError: a file could not be written.
    """
    total, done = sum(spec.n_bytes for spec in model.specs.values()), 0

    def produce(name: str) -> Tensor:
        nonlocal done
        tensor = model.tensors[name]()
        done += model.specs[name].n_bytes
        notify(done, total)
        return tensor

    shards = split_shards(model.specs)
    if len(shards) == 1:
        write_foreign_tensors(folder / WEIGHTS_FILE, model.specs, produce)
        return
    files = {f"model-{n:05d}-of-{len(shards):05d}.safetensors": names for n, names in enumerate(shards, 1)}
    for file, names in files.items():
        write_foreign_tensors(folder / file, {name: model.specs[name] for name in names}, produce)
    weight_map = {name: file for file, names in files.items() for name in names}
    write_file(folder / INDEX_FILE, json_bytes({"metadata": {"total_size": total}, "weight_map": weight_map}))


def split_shards(specs: Mapping[str, TensorSpec], max_bytes: int = MAX_SHARD_BYTES) -> list[list[str]]:
    """Split tensors into groups of at most ``max_bytes``, in order; a larger tensor is a group of its own."""
    shards: list[list[str]] = [[]]
    size = 0
    for name, spec in specs.items():
        if shards[-1] and size + spec.n_bytes > max_bytes:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += spec.n_bytes
    return shards
