"""Read an adapter folder of the PEFT library: its settings, and A and B of the layers of a model. All sizes are checked before reading."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transom.checkpoints.tensors import open_safetensors, require_finite
from transom.config.architecture import ModelConfig
from transom.errors import CheckpointError
from transom.exchange.family import Family
from transom.exchange.foreign_folder import CONFIG_FILE, FLOATS, read_json_object
from transom.exchange.low_rank import SUFFIX, LowRank, is_adaptable
from transom.exchange.peft_config import ADAPTER_CONFIG, ADAPTER_WEIGHTS, PeftConfig, read_peft_config
from transom.exchange.tensor_rows import Configs, TensorGroup, Transposed, group_tensors
from transom.models.build import build_model

PREFIX = "base_model.model."
"""First part of the names of an adapter's tensors."""

LORA_A, LORA_B = ".lora_A.weight", ".lora_B.weight"


@dataclass(frozen=True)
class ModelTensors:
    """Tensors of a model on both sides.

    Attributes:
        family: the foreign family.
        configs: configuration on both sides.
        like: our tensors by name, without values.
        groups: correspondence of the tensors.
    """

    family: Family
    configs: Configs
    like: Mapping[str, Tensor]
    groups: list[TensorGroup]

    @classmethod
    def of(cls, config: ModelConfig, family: Family) -> "ModelTensors":
        """Return the tensors of a model that a family equals."""
        target = family.target_config(config)
        with torch.device("meta"):
            like = build_model(target).state_dict()
        return cls(family, Configs(target, family.write_config(config)), like, group_tensors(family.tensors, list(like), target))

    def find(self, name: str) -> TensorGroup | None:
        """Return the group of a foreign tensor, whose name may lack the family's prefix; None if the model has no such tensor."""
        names = (name, self.family.prefix + name)
        return next((group for group in self.groups if group.foreign in names), None)

    def foreign_shape(self, group: TensorGroup) -> tuple[int, ...]:
        """Return the shape of a foreign tensor."""
        return tuple(group.how.write([self.like[name] for name in group.ours], self.configs).shape)


@dataclass(frozen=True)
class ForeignAdapter:
    """An adapter whose files have been checked and read.

    Attributes:
        fields: content of its configuration.
        settings: the settings in it.
        layers: A and B by the name of the foreign module, with the layers of ours that it corresponds to.
        saved: our tensors by name that were trained beside the adapter.
    """

    fields: dict[str, Any]
    settings: PeftConfig
    layers: Mapping[str, tuple[TensorGroup, LowRank]]
    saved: Mapping[str, Tensor]


def is_adapter_folder(path: Path) -> bool:
    """Return whether a folder holds an adapter and no model."""
    return (path / ADAPTER_CONFIG).exists() and not (path / CONFIG_FILE).exists()


def read_adapter(path: Path, model: ModelTensors) -> ForeignAdapter:
    """Read an adapter folder.

    Args:
        path: folder with ``adapter_config.json`` and ``adapter_model.safetensors``.
        model: tensors of the base model.

    Raises:
        CheckpointError: a file is missing or damaged, the adapter does not fit the model, or LoRA here cannot express it.
    """
    if not path.is_dir():
        raise CheckpointError(f"{path}: expected a folder with {ADAPTER_CONFIG}, found {'a file' if path.exists() else 'nothing'}")
    fields = read_json_object(path / ADAPTER_CONFIG)
    if fields is None:
        raise CheckpointError(f"{path}: expected a folder with {ADAPTER_CONFIG}, found none; name a folder that PEFT's save_pretrained wrote")
    settings, weights = read_peft_config(fields, path / ADAPTER_CONFIG), path / ADAPTER_WEIGHTS
    if not weights.exists():
        pickled = (path / "adapter_model.bin").exists()
        found = "adapter_model.bin, a pickle, which can run code when it is read" if pickled else "none"
        raise CheckpointError(f"{path}: expected {ADAPTER_WEIGHTS}, found {found}; save the adapter with safe_serialization=True")
    handle, specs = open_safetensors(weights)
    if wrong := [name for name, spec in specs.items() if spec.dtype not in FLOATS]:
        raise CheckpointError(f"{weights}: tensor {wrong[0][:200]!r}: expected floating-point values, found {specs[wrong[0]].dtype}")
    groups = {name: _find_group(name, weights, model) for name in specs}
    modules = {name.removesuffix(end): group for name, group in groups.items() for end in (LORA_A, LORA_B) if name.endswith(end)}
    for module, group in modules.items():
        shapes = {name: specs[module + name].shape for name in (LORA_A, LORA_B) if module + name in specs}
        _check_shapes(module, group, shapes, settings, model, weights)
    saved = {name: group for name, group in groups.items() if not name.endswith((LORA_A, LORA_B))}
    for name, group in saved.items():
        if specs[name].shape != (expected := model.foreign_shape(group)):
            raise CheckpointError(f"{weights}: tensor {name[:200]!r}: expected shape {expected} of the base model, found {specs[name].shape}")
    tensors: dict[str, Tensor] = {name: handle.get_tensor(name).clone() for name in specs}
    require_finite(weights, tensors)
    layers = {m.removeprefix(PREFIX): (group, LowRank(tensors[m + LORA_A], tensors[m + LORA_B])) for m, group in modules.items()}
    if not layers:
        raise CheckpointError(f"{weights}: expected matrices A and B of linear layers, found none")
    ours = {}
    for name, group in saved.items():
        parts = group.how.read(tensors[name], [model.like[each] for each in group.ours], model.configs)
        ours |= dict(zip(group.ours, parts, strict=True))
    return ForeignAdapter(fields, settings, layers, ours)


def _find_group(name: str, path: Path, model: ModelTensors) -> TensorGroup:
    """Return the tensors of ours that a tensor of the file adapts or replaces."""
    is_lora = name.endswith((LORA_A, LORA_B))
    module = name.removesuffix(LORA_A).removesuffix(LORA_B).removeprefix(PREFIX)
    group = model.find(module + SUFFIX if is_lora else module) if name.startswith(PREFIX) else None
    if group is None:
        raise CheckpointError(
            f"{path}: tensor {name[:200]!r}: expected one of a layer of the base model, a {model.family.architecture}, found none of that"
            " name; give the run of the adapter's own base by --base"
        )
    if is_lora and not is_adaptable(group):
        raise CheckpointError(
            f"{path}: tensor {name[:200]!r}: expected a linear layer of attention or of a feed-forward network, found {module[:200]!r}; merge"
            " the adapter into the model with PEFT's merge_and_unload, and import the merged model"
        )
    return group


def _check_shapes(
    module: str, group: TensorGroup, found: Mapping[str, tuple[int, ...]], settings: PeftConfig, model: ModelTensors, path: Path
) -> None:
    rank, (d_out, d_in) = settings.rank_of(module.removeprefix(PREFIX)), model.foreign_shape(group)
    if isinstance(group.how, Transposed):
        d_out, d_in = d_in, d_out
    expected = {LORA_A: (rank, d_in), LORA_B: (d_out, rank)}
    if found != expected:
        shapes = " and ".join(str(found.get(name, "none")) for name in expected)
        raise CheckpointError(
            f"{path}: {module[:200]!r}: expected A of shape {expected[LORA_A]} and B of shape {expected[LORA_B]}, found {shapes}; the adapter"
            " belongs to another model"
        )
