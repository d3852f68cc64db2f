"""Import a LoRA adapter of the PEFT library: merge it into a copy of its base run, and keep its matrices beside."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from transom.checkpoints.run_files import ADAPTER, BASE, CARD, RECIPE, TOKENIZER, WEIGHTS, contains_run
from transom.checkpoints.run_folder import RunFolder
from transom.checkpoints.tensor_stream import write_tensors
from transom.checkpoints.tensors import Origin, TensorSpec
from transom.config.recipe import load_recipe
from transom.errors import CheckpointError, ConfigError
from transom.exchange.adapters.adapter_folder import ForeignAdapter, ModelTensors, read_adapter
from transom.exchange.adapters.low_rank import SUFFIX, LowRank, is_adaptable, split, without_blocks
from transom.exchange.adapters.peft_config import ADAPTER_CONFIG
from transom.exchange.export_model import choose_family
from transom.exchange.family import Family
from transom.exchange.import_folder import ImportReport, Notify, new_run
from transom.exchange.import_model import new_run_id
from transom.exchange.imported import Imported
from transom.models.apply_lora import target_module
from transom.planning.parameters import count_parameters


@dataclass(frozen=True)
class LoraLayers:
    """An adapter as LoRA here has it: the same rank and scale in every adapted layer.

    Attributes:
        layers: A and B by the path of our layer.
        scale: factor of B A x.
    """

    layers: Mapping[str, LowRank]
    scale: float

    @property
    def rank(self) -> int:
        """Rank of all layers."""
        return next(iter(self.layers.values())).rank

    @property
    def target_modules(self) -> list[str]:
        """The adapted layers of each block."""
        return sorted({target_module(path) for path in self.layers})


def import_adapter(source: Path, base: Path, out: Path, notify: Notify = lambda done, total: None) -> ImportReport:
    """Import an adapter. The adapter's folder and the base run are only read, and nothing in them is executed.

    Args:
        source: folder with ``adapter_config.json`` and ``adapter_model.safetensors``.
        base: run folder of the adapter's base model.
        out: the new run folder, which needs the base run no more.
        notify: called with the number of bytes of weights written and their total.

    Raises:
        CheckpointError: a file is missing or damaged, or the adapter is none that transom can express, or of another base.
        ConfigError: ``out`` holds a run or other files, or the base model has no equal in the transformers library.
        DiskError: the disk is full, or the folder cannot be written.
    """
    start = time.perf_counter()
    if contains_run(out):
        raise ConfigError(f"{out}: expected a new folder, found a run; give another OUT")
    run = RunFolder.open(base)
    config = run.load_config()
    imported = Imported.read(run)
    family = choose_family(config, None if imported is None else imported.model_type)
    model = ModelTensors.of(config, family)
    adapter = read_adapter(source, model)
    lora = to_lora(adapter, model, source)
    weights = {name: tensor for name, tensor in run.read_weights(WEIGHTS).items() if name in model.like}
    if strange := [name for name in adapter.saved if name not in weights]:
        raise CheckpointError(
            f"{source}: expected tensors of the base run {base}, found {strange[0]!r}, which it lacks; import its own base"
        )
    with new_run(out) as folder:
        folder.write_config(config, new_run_id())
        if (base / TOKENIZER).exists():
            folder.write(TOKENIZER, run.read(TOKENIZER))
        kept = imported or _as_imported(run, family)
        kept.model_copy(update={"files": {**kept.files, ADAPTER_CONFIG: adapter.fields}}).write(folder)
        n_bytes = _write_weights(folder, weights, adapter.saved, lora, notify)
        note = f"LoRA of rank {lora.rank} on {', '.join(lora.target_modules)}, merged into the weights of {base}"
        folder.write(CARD, f"# {source.resolve().name}\n\nAn adapter of the PEFT library, imported by transom: {note}.\n".encode())
    return ImportReport(
        str(out),
        family.model_type,
        family.architecture,
        kept.task,
        count_parameters(config).total,
        sorted({str(layer.a.dtype).removeprefix("torch.") for layer in lora.layers.values()}),
        n_bytes,
        time.perf_counter() - start,
        [note],
    )


def to_lora(adapter: ForeignAdapter, model: ModelTensors, source: Path) -> LoraLayers:
    """Convert the adapter to layers of ours.

    Raises:
        CheckpointError: it leaves out a layer in some blocks, or has several ranks or scales.
    """
    kinds: dict[tuple[str, ...], list[str]] = {}
    for module, (group, _) in adapter.layers.items():
        kinds.setdefault(tuple(target_module(name.removesuffix(SUFFIX)) for name in group.ours), []).append(module)
    layers: dict[str, LowRank] = {}
    scales: dict[float, str] = {}
    for modules in kinds.values():
        dense: list[list[LowRank]] = [
            split(adapter.layers[module][1], adapter.layers[module][0], model.like, model.configs) for module in modules
        ]
        found: Sequence[Sequence[LowRank | None]] = without_blocks(dense) or dense
        for module, parts in zip(modules, found, strict=True):
            names = (name.removesuffix(SUFFIX) for name in adapter.layers[module][0].ours)
            layers |= {name: part for name, part in zip(names, parts, strict=True) if part is not None}
            scales.setdefault(adapter.settings.scale_of(module), module)
    lora = LoraLayers(layers, next(iter(scales)))
    ranks = {layer.rank: path for path, layer in layers.items()}
    if len(ranks) > 1 or len(scales) > 1:
        kind, values = ("rank", ranks) if len(ranks) > 1 else ("scale", scales)
        raise CheckpointError(
            f"{source / ADAPTER_CONFIG}: rank_pattern: expected one rank and one scale of all layers, found {kind}"
            f" {' and '.join(f'{value:g} ({module[:120]})' for value, module in list(values.items())[:2])}; merge the adapter into the"
            " model with PEFT's merge_and_unload, and import the merged model"
        )
    every = [name.removesuffix(SUFFIX) for group in model.groups if is_adaptable(group) for name in group.ours]
    wanted = [path for path in every if target_module(path) in lora.target_modules]
    if missing := [path for path in wanted if path not in layers]:
        raise CheckpointError(
            f"{source}: expected {target_module(missing[0])} to be adapted in every block, found {len(layers):,} of {len(wanted):,} layers,"
            f" without {missing[0]}; merge the adapter into the model with PEFT's merge_and_unload, and import the merged model"
        )
    return lora


def _as_imported(run: RunFolder, family: Family) -> Imported:
    """Return what a run that transom trained would have brought along, had it been imported."""
    recipe = load_recipe(run.path / RECIPE)[0]
    decoding = getattr(recipe, "decoding", None)
    return Imported(
        model_type=family.model_type,
        architecture=family.architecture,
        task=recipe.task,
        decoding={} if decoding is None else decoding.model_dump(mode="json"),
    )


def _write_weights(folder: RunFolder, weights: Mapping[str, Tensor], saved: Mapping[str, Tensor], lora: LoraLayers, notify: Notify) -> int:
    """Write the weights of the base, those of the adapter, and the merged ones; return the number of bytes."""
    base = {name: tensor for name, tensor in weights.items() if name not in saved}
    adapter = {f"{path}.{name}": x for path, layer in lora.layers.items() for name, x in (("lora_a", layer.a), ("lora_b", layer.b))}
    files: dict[str, Mapping[str, Tensor]] = {BASE: base, ADAPTER: {**adapter, **saved}, WEIGHTS: {**weights, **saved}}
    total, done = sum(tensor.nbytes for tensors in files.values() for tensor in tensors.values()), 0
    run = folder.run_id
    assert run is not None, "config.json is written first"
    for file, tensors in files.items():

        def produce(name: str, file: str = file, tensors: Mapping[str, Tensor] = tensors) -> Tensor:
            nonlocal done
            done += tensors[name].nbytes
            notify(done, total)
            layer = lora.layers.get(name.removesuffix(SUFFIX)) if file == WEIGHTS and name.endswith(SUFFIX) else None
            return tensors[name] if layer is None else merged(tensors[name], layer, lora.scale)

        write_tensors(folder.path / file, {name: TensorSpec.of(tensor) for name, tensor in tensors.items()}, produce, Origin(run, 0))
    return total


def merged(weight: Tensor, layer: LowRank, scale: float) -> Tensor:
    """Return W + scale * B A in the dtype of W, computed in float32 or wider."""
    dtype = torch.promote_types(torch.promote_types(weight.dtype, layer.a.dtype), torch.float32)
    return (weight.to(dtype) + scale * layer.b.to(dtype) @ layer.a.to(dtype)).to(weight.dtype)
