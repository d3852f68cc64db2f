"""Export the LoRA adapter of a run in the PEFT library's format, and check it on the exported base before it gets its name."""

import shutil
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from transom.checkpoints.run_files import ADAPTER, BASE, CARD, RECIPE
from transom.checkpoints.run_folder import RunFolder
from transom.checkpoints.tensor_stream import write_foreign_tensors
from transom.checkpoints.tensors import TensorSpec
from transom.config.recipe import load_recipe
from transom.errors import ConfigError
from transom.exchange.adapters.adapter_folder import LORA_A, LORA_B, PREFIX, ModelTensors, module_name
from transom.exchange.adapters.low_rank import SUFFIX, LowRank, fuse, is_adaptable
from transom.exchange.adapters.peft_config import ADAPTER_CONFIG, ADAPTER_WEIGHTS, TASK_TYPES, PeftConfig, read_peft_config
from transom.exchange.check_export import compare_logits, load_export
from transom.exchange.export_model import ForeignModel, choose_family, convert_model, write_foreign_weights
from transom.exchange.export_run import ExportReport, json_files, new_folder, require_export
from transom.exchange.foreign_folder import CONFIG_FILE
from transom.exchange.generation import DecodingSettings
from transom.exchange.imported import Imported
from transom.exchange.tokenizer.tokenizer_exchange import load_run_tokenizers
from transom.files.atomic_io import json_bytes, write_file
from transom.models.build import build_uninitialized

HEADS = ("classifier", "score")
"""Ends of the names of modules that PEFT always saves with a classifier."""


@dataclass(frozen=True)
class RunAdapter:
    """The adapter of a run.

    Attributes:
        tensors: content of ``adapter.safetensors``.
        settings: rank, alpha and dropout.
        kept: configuration of the imported adapter; None if transom trained it.
    """

    tensors: Mapping[str, Tensor]
    settings: PeftConfig
    kept: dict[str, Any] | None

    @property
    def saved(self) -> dict[str, Tensor]:
        """Tensors of ours that were trained beside A and B."""
        return {name: tensor for name, tensor in self.tensors.items() if not name.endswith((".lora_a", ".lora_b"))}

    def layer(self, path: str) -> LowRank | None:
        """Return A and B of a layer; None if it is not adapted."""
        a, b = (self.tensors.get(f"{path}.{name}") for name in ("lora_a", "lora_b"))
        return None if a is None or b is None else LowRank(a, b)


def read_run_adapter(run: RunFolder) -> RunAdapter:
    """Read the adapter of a run.

    Raises:
        CheckpointError: a file is damaged.
        ConfigError: the run has no adapter.
    """
    imported = Imported.read(run)
    kept = None if imported is None else imported.files.get(ADAPTER_CONFIG)
    trained = load_recipe(run.path / RECIPE)[0].training.adapter if run.has_recipe else None
    if kept is not None:
        settings = read_peft_config(kept, run.path / ADAPTER_CONFIG)
    elif trained is not None:
        settings = PeftConfig(trained.rank, trained.alpha, trained.dropout, False, {}, {})
    else:
        raise ConfigError(
            f"--adapter: expected a run with training.adapter = 'lora', found {run.path}, which has no adapter; omit --adapter"
        )
    return RunAdapter(run.read_weights(ADAPTER), settings, kept)


def export_adapter(run: Path, out: Path, base_name: str | None = None, model_type: str | None = None) -> ExportReport:
    """Export the adapter of a run as a folder of the PEFT library.

    For the check, the library loads the run's base, exported beside; A and B of the written files are merged into it by PEFT's formula, and
    its logits are compared with those of the run.

    Args:
        run: folder of a run that trained an adapter, or of an imported one.
        out: the new folder.
        base_name: folder or hub name of the base model in the transformers library's format, for ``base_model_name_or_path``.
        model_type: foreign family; None for the one that equals the model and adds the fewest parameters.

    Raises:
        CheckpointError: the run folder is damaged.
        ConfigError: the run has no adapter, no family equals the model, PEFT cannot express the adapter, or ``out`` exists.
        DiskError: the disk is full, or the folder cannot be written.
        TransomError: the check found a difference.
    """
    start = time.perf_counter()
    require_export(out)
    folder = RunFolder.open(run)
    config, imported, adapter = folder.load_config(), Imported.read(folder), read_run_adapter(folder)
    family = choose_family(config, model_type or (None if imported is None else imported.model_type))
    if shared := [name for name in adapter.saved if "embedding." in name and "unembedding" not in name]:
        raise ConfigError(
            f"--adapter: expected embeddings as in the base run, found {shared[0]}, which was trained anew; export the merged model instead"
        )
    model = ModelTensors.of(config, family)
    whole = build_uninitialized(config)
    folder.load_weights(whole)
    foreign = convert_model(config, {**folder.read_weights(BASE), **adapter.saved}, family)
    with new_folder(out) as partial:
        base = partial / "base"
        loaded = _load_base(folder, foreign, imported, base)
        layers = _foreign_layers(adapter, model)
        modules = dict(loaded.named_modules())
        if missing := [name for name in layers if not isinstance(getattr(modules.get(name), "weight", None), Tensor)]:
            raise ConfigError(
                f"--adapter: expected linear layers that {family.architecture} has, found {missing[0]}, which the transformers library"
                " stores in another form; export the merged model instead"
            )
        fields, saved = _write_config(adapter, model, layers, loaded, base_name)
        tensors = {f"{PREFIX}{name}{end}": x for name, layer in layers.items() for end, x in ((LORA_A, layer.a), (LORA_B, layer.b))}
        tensors |= {f"{PREFIX}{module_name(name)}": produce() for name, produce in foreign.tensors.items() if module_name(name) in saved}
        write_file(partial / ADAPTER_CONFIG, json_bytes(fields))
        write_file(partial / CARD, _card(out.name, fields).encode())
        write_foreign_tensors(partial / ADAPTER_WEIGHTS, {name: TensorSpec.of(x) for name, x in tensors.items()}, tensors.__getitem__)
        _merge(modules, layers, read_peft_config(fields, partial / ADAPTER_CONFIG))
        agreement = compare_logits(whole.eval(), loaded, out)
        shutil.rmtree(base)
    targets = fields["target_modules"]
    note = f"LoRA of rank {fields['r']} on {targets if isinstance(targets, str) else ', '.join(targets)}"
    return ExportReport(
        str(out), family.model_type, family.architecture, family.auto_class, "", agreement, time.perf_counter() - start, [note]
    )


def _load_base(folder: RunFolder, foreign: ForeignModel, imported: Imported | None, base: Path) -> Any:
    """Export the base model, with the tensors that were trained beside the adapter, and load it with the library's class."""
    tokenizers = load_run_tokenizers(folder) if foreign.family.reads_text else None
    base.mkdir()
    files = json_files(foreign.family, folder.load_config(), foreign.config, tokenizers, imported, DecodingSettings({}, []))
    write_file(base / CONFIG_FILE, json_bytes(files[CONFIG_FILE]))
    write_foreign_weights(foreign, base)
    return load_export(base, foreign.family)


def _foreign_layers(adapter: RunAdapter, model: ModelTensors) -> dict[str, LowRank]:
    """Return A and B by the name of the foreign module."""
    found = {}
    for group in filter(is_adaptable, model.groups):
        parts = [adapter.layer(name.removesuffix(SUFFIX)) for name in group.ours]
        if any(part is not None for part in parts):
            found[module_name(group.foreign[0]).removesuffix(SUFFIX)] = fuse(parts, group, model.like, model.configs)
    return found


def _write_config(
    adapter: RunAdapter, model: ModelTensors, layers: Mapping[str, LowRank], loaded: nn.Module, base_name: str | None
) -> tuple[dict[str, Any], list[str]]:
    """Return the content of ``adapter_config.json``, and the foreign tensors to save beside A and B."""
    fresh = {
        each for group in model.groups if any(name in adapter.saved for name in group.ours) for each in map(module_name, group.foreign)
    }
    if adapter.kept is not None:
        return adapter.kept | ({} if base_name is None else {"base_model_name_or_path": base_name}), sorted(fresh)
    settings, names = adapter.settings, [name for name, _ in loaded.named_modules()]
    heads = _saved_modules(fresh, loaded, model.family.kind)
    # PEFT saves and loads all modules whose names end with one of these.
    wrapped = tuple(f"{name}." for name in names if name.endswith(tuple(heads)))
    saved = [name for name, _ in loaded.named_parameters() if name.startswith(wrapped)]
    ranks: dict[int, list[str]] = {}
    for name, layer in layers.items():
        ranks.setdefault(layer.rank, []).append(name)
    usual = max(ranks, key=lambda rank: len(ranks[rank]))
    patterns = {end: rank for rank, modules in ranks.items() if rank != usual for end in short_names(modules, names)}
    fields = {
        "peft_type": "LORA",
        "task_type": TASK_TYPES.get(model.family.kind),
        "base_model_name_or_path": base_name,
        "inference_mode": True,
        "r": usual,
        "lora_alpha": _whole(settings.alpha * usual / settings.rank),
        "lora_dropout": settings.dropout,
        "target_modules": short_names(list(layers), names),
        "modules_to_save": heads or None,
        "fan_in_fan_out": any(type(module).__name__ == "Conv1D" for name, module in loaded.named_modules() if name in layers),
        "bias": "none",
        "rank_pattern": patterns,
        "alpha_pattern": {end: _whole(settings.alpha * rank / settings.rank) for end, rank in patterns.items()},
        "use_rslora": False,
        "use_dora": False,
    }
    return fields, saved


def _whole(value: float) -> float:
    """Return an integer as such, as PEFT writes it."""
    return int(value) if value == int(value) else value


def _saved_modules(fresh: Collection[str], loaded: nn.Module, kind: str) -> list[str]:
    """Return ``modules_to_save``: the largest modules all of whose parameters were trained beside the adapter, and a classifier's head."""
    names = [name for name, _ in loaded.named_parameters()]
    found = set()
    for name in fresh:
        module = name.rpartition(".")[0]
        while (parent := module.rpartition(".")[0]) and all(each in fresh for each in names if each.startswith(f"{parent}.")):
            module = parent
        found.add(module)
    if kind == "text-classifier":
        heads = {name for name, _ in loaded.named_children() if name.endswith(HEADS)}
        found = {name for name in found if name.partition(".")[0] not in heads} | heads
    return sorted(found)


def short_names(modules: Collection[str], names: Collection[str]) -> list[str]:
    """Return the shortest ends of names by which PEFT finds these modules and no others of the model.

    >>> short_names(["h.0.attn.out", "h.1.attn.out"], ["h.0.attn.out", "h.1.attn.out", "h.0.ff.out", "h.1.ff.out"])
    ['attn.out']
    """
    found = set()
    for name in modules:
        parts = name.split(".")
        ends = (".".join(parts[-n:]) for n in range(1, len(parts) + 1))
        found.add(next(end for end in ends if all(other in modules for other in names if other == end or other.endswith(f".{end}"))))
    return sorted(found)


@torch.no_grad()
def _merge(modules: Mapping[str, nn.Module], layers: Mapping[str, LowRank], settings: PeftConfig) -> None:
    """Add scale * B A to the weights of the library's model, as PEFT's ``merge_and_unload`` does."""
    for name, layer in layers.items():
        weight: Any = modules[name].weight
        update = settings.scale_of(name) * layer.b.float() @ layer.a.float()
        weight.add_(update.t() if type(modules[name]).__name__ == "Conv1D" else update)


def _card(name: str, fields: Mapping[str, Any]) -> str:
    """Return the model card."""
    base = fields["base_model_name_or_path"]
    matter = ["library_name: peft", *([] if base is None else [f"base_model: {base}"])]
    return "\n".join(["---", *matter, "---", "", f"# {name}", "", f"LoRA of rank {fields['r']}, trained with transom."]) + "\n"
