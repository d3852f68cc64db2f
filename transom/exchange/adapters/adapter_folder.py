"""Read an adapter folder of the PEFT library: its settings, and A and B of the layers of a model. All sizes are checked before reading."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transom.checkpoints.tensors import TensorSpec, open_safetensors, require_finite
from transom.config.architecture import ModelConfig
from transom.errors import CheckpointError, ConfigError
from transom.exchange.adapters.low_rank import SUFFIX, LowRank, is_adaptable
from transom.exchange.adapters.peft_config import ADAPTER_CONFIG, ADAPTER_WEIGHTS, PeftConfig, read_peft_config
from transom.exchange.family import Family
from transom.exchange.foreign_folder import CONFIG_FILE, FLOATS, read_json_object
from transom.exchange.tensor_rows import Configs, TensorGroup, Transposed, group_tensors
from transom.models.build import build_model

PREFIX = "base_model.model."
"""First part of the names of an adapter's tensors."""

LORA_A, LORA_B = ".lora_A.weight", ".lora_B.weight"

_LAYER = r"((?:vit|deit)\.)encoder\.layer\.(\d+)\."
_RENAMED = tuple(
    (re.compile(old), new)
    for old, new in (
        (rf"{_LAYER}attention\.attention\.([qkv])(?:uery|ey|alue)\.", r"\1layers.\2.attention.\3_proj."),
        (rf"{_LAYER}attention\.output\.dense\.", r"\1layers.\2.attention.o_proj."),
        (rf"{_LAYER}intermediate\.dense\.", r"\1layers.\2.mlp.fc1."),
        (rf"{_LAYER}output\.dense\.", r"\1layers.\2.mlp.fc2."),
        (r"embed_out\.", "lm_head."),
    )
)
"""Names in the library's files, and those of its modules, which PEFT uses; the library renames the tensors when it reads a file."""


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
        return next((group for group in self.groups if any(_is_called(name, each, self.family) for each in group.foreign)), None)

    def foreign_shapes(self, group: TensorGroup) -> list[tuple[int, ...]]:
        """Return the shapes of the foreign tensors of a group."""
        return [tuple(x.shape) for x in group.how.write([self.like[name] for name in group.ours], self.configs)]


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


def module_name(name: str) -> str:
    """Return the name of a tensor in the library's modules, by its name in a file.

    >>> module_name("vit.encoder.layer.0.attention.attention.query.weight")
    'vit.layers.0.attention.q_proj.weight'
    """
    return next((new for pattern, to in _RENAMED if (new := pattern.sub(to, name)) != name), name)


def require_base(path: Path, base: Path | None) -> None:
    """Check that an adapter, and only an adapter, is imported with a base run.

    Raises:
        ConfigError: the folder is an adapter and has no base, or a whole model and has one.
    """
    is_adapter = (path / ADAPTER_CONFIG).exists()
    if base is None and is_adapter and not (path / CONFIG_FILE).exists():
        raise ConfigError(
            f"{path}: expected the run of this adapter's base model, found none; import that model first, and name it by --base"
        )
    if base is not None and path.is_dir() and not is_adapter:
        raise ConfigError(f"--base: expected an adapter of the PEFT library, found {path} without {ADAPTER_CONFIG}; omit --base")


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
        raise CheckpointError(
            f"{path}: expected a folder with {ADAPTER_CONFIG}, found none; name a folder that PEFT's save_pretrained wrote"
        )
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
    saved = _saved_groups({name: group for name, group in groups.items() if not name.endswith((LORA_A, LORA_B))}, specs, model, weights)
    tensors: dict[str, Tensor] = {name: handle.get_tensor(name).clone() for name in specs}
    require_finite(weights, tensors)
    layers = {m.removeprefix(PREFIX): (group, LowRank(tensors[m + LORA_A], tensors[m + LORA_B])) for m, group in modules.items()}
    if not layers:
        raise CheckpointError(f"{weights}: expected matrices A and B of linear layers, found none")
    ours: dict[str, Tensor] = {}
    for names, group in saved:
        parts = group.how.read([tensors[name] for name in names], [model.like[each] for each in group.ours], model.configs)
        ours |= dict(zip(group.ours, parts, strict=True))
    return ForeignAdapter(fields, settings, layers, ours)


def _is_called(name: str, foreign: str, family: Family) -> bool:
    """Return whether a name in the file is that of a foreign tensor."""
    given = name.removeprefix(PREFIX)
    return any(each in (foreign, module_name(foreign)) for each in (given, family.prefix + given))


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
            f"{path}: tensor {name[:200]!r}: expected a linear layer of attention or of a feed-forward network, found {module[:200]!r};"
            " merge the adapter into the model with PEFT's merge_and_unload, and import the merged model"
        )
    return group


def _saved_groups(
    found: Mapping[str, TensorGroup], specs: Mapping[str, TensorSpec], model: ModelTensors, path: Path
) -> list[tuple[list[str], TensorGroup]]:
    """Return the groups of tensors that were trained beside the adapter, with their names in the file."""
    groups = {group.foreign: group for group in found.values()}
    listed = []
    for group in groups.values():
        names = [next((n for n, of in found.items() if of is group and _is_called(n, each, model.family)), None) for each in group.foreign]
        for name, foreign, shape in zip(names, group.foreign, model.foreign_shapes(group), strict=True):
            if name is None or specs[name].shape != shape:
                what = "none" if name is None else str(specs[name].shape)
                raise CheckpointError(f"{path}: tensor {foreign!r}: expected shape {shape} of the base model, found {what}")
        listed.append(([name for name in names if name is not None], group))
    return listed


def _check_shapes(
    module: str, group: TensorGroup, found: Mapping[str, tuple[int, ...]], settings: PeftConfig, model: ModelTensors, path: Path
) -> None:
    rank, (d_out, d_in) = settings.rank_of(module.removeprefix(PREFIX)), model.foreign_shapes(group)[0]
    if isinstance(group.how, Transposed):
        d_out, d_in = d_in, d_out
    expected = {LORA_A: (rank, d_in), LORA_B: (d_out, rank)}
    if found != expected:
        shapes = " and ".join(str(found.get(name, "none")) for name in expected)
        raise CheckpointError(
            f"{path}: {module[:200]!r}: expected A of shape {expected[LORA_A]} and B of shape {expected[LORA_B]}, found {shapes}; the"
            " adapter belongs to another model"
        )
