"""Fine-tuning by low-rank maps: what learns, what is kept, what a run folder holds, and that it learns what all weights would."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.conftest import changed, measured, sit
from tests.training.test_train_loop import KILLS, Killed, die, kill_at, recipe, same
from transom.checkpoints.run_files import ADAPTER, BASE, WEIGHTS
from transom.checkpoints.run_folder import RunFolder
from transom.checkpoints.tensors import read_specs, read_tensors
from transom.decoding.backends.fused_inference import FusedSeq2Seq
from transom.decoding.backends.native_decoder import NativeSeq2Seq
from transom.decoding.predictors.classifier import Classifier
from transom.decoding.predictors.translator import Translator
from transom.errors import CheckpointError, ConfigError
from transom.tasks.classification.schema import ClassificationRecipe
from transom.tasks.load import load
from transom.tasks.masked.schema import MaskedRecipe
from transom.tasks.task import build_training_setup
from transom.tasks.translation.schema import TranslationRecipe
from transom.training.events import StepFinished, TrainingStarted

LORA: dict[str, Any] = {"rank": 2, "alpha": 6.0, "target_modules": ["attn.q", "attn.v", "ff.down"]}


@pytest.fixture
def pretrained(masked: MaskedRecipe, tmp_path: Path) -> Path:
    sit(changed(masked, max_steps=4), tmp_path / "pretrained")
    return tmp_path / "pretrained"


def numbers(path: Path) -> int:
    """Count the numbers in a file of tensors."""
    return sum(torch.Size(spec.shape).numel() for spec in read_specs(path).values())


def test_a_run_folder_is_whole_and_its_parts_are_small(classes: ClassificationRecipe, pretrained: Path, tmp_path: Path) -> None:
    seen: list[Any] = []
    tuned = changed(classes, init_from=str(pretrained), adapter=LORA, max_steps=12, average="none")
    sit(tuned, tmp_path / "tuned", seen.append)
    before, out = read_tensors(pretrained / WEIGHTS), tmp_path / "tuned"
    base, adapter, whole = (read_tensors(out / name) for name in (BASE, ADAPTER, WEIGHTS))
    assert base.keys() < before.keys() | {"pooler.weight"} and all(torch.equal(x, before[name]) for name, x in base.items())
    heads = {"pooler.weight", "pooler.bias", "unembedding.weight"}
    maps = [f"encoder.blocks.0.{name}" for name in LORA["target_modules"]]
    assert adapter.keys() == heads | {f"{path}.lora_{x}" for path in maps for x in "ab"}
    for name, x in whole.items():
        if name.removesuffix(".weight") in maps:
            a, b = (adapter[f"{name.removesuffix('.weight')}.lora_{x}"] for x in "ab")
            assert torch.allclose(x, base[name] + 6.0 / 2 * b @ a, rtol=0, atol=1e-6) and not torch.equal(x, base[name])
        else:
            assert torch.equal(x, adapter[name] if name in heads else base[name])
    newest = RunFolder.open(out).checkpoints.latest()
    assert newest is not None and numbers(out / "checkpoints" / f"step-{newest.step}" / WEIGHTS) == numbers(out / ADAPTER)
    optimizer = read_specs(out / "checkpoints" / f"step-{newest.step}" / "optimizer.safetensors")
    assert sum(torch.Size(spec.shape).numel() for spec in optimizer.values()) == 2 * numbers(out / ADAPTER) + len(adapter)
    started = next(e for e in seen if isinstance(e, TrainingStarted))
    learned, total = numbers(out / ADAPTER), sum(x.numel() for x in whole.values())
    assert started.notes[-1] == (
        f"lora of rank 2 on attn.q, attn.v, ff.down: {learned:,} parameters are trained, {learned / total:.2%} of the model's"
        f" {total:,} parameters; the others are frozen"
    )
    assert learned < 0.25 * total and started.facts["parameters"] == total
    for path in pretrained.iterdir():
        path.unlink() if path.is_file() else path.rename(tmp_path / "gone")
    assert isinstance(load(out), Classifier)


CHECKPOINTS, EMA = {"kind": "checkpoints", "n_checkpoints": 2}, {"kind": "ema", "decay": 0.8}


@pytest.mark.long
@pytest.mark.parametrize(
    ("processes", "average"),
    [(1, CHECKPOINTS), (1, EMA), pytest.param(2, CHECKPOINTS, marks=pytest.mark.long)],
    ids=["checkpoints", "ema", "two"],
)
def test_a_killed_run_ends_as_the_run_left_alone(
    classes: ClassificationRecipe, pretrained: Path, tmp_path: Path, processes: int, average: dict[str, Any]
) -> None:
    adapter = {**LORA, "dropout": 0.2}
    tuned = changed(classes, init_from=str(pretrained), adapter=adapter, processes=processes, average=average)
    sit(tuned, tmp_path / "alone")
    die(partial(sit, tuned, tmp_path / "killed"), KILLS if processes == 1 else KILLS[-1:])
    for path in pretrained.iterdir():
        path.rename(pretrained.parent / f"gone-{path.name}")
    sit(changed(classes, adapter=adapter, processes=processes, average=average), tmp_path / "killed")
    same(tmp_path / "alone", tmp_path / "killed")
    for name in (BASE, ADAPTER):
        assert (tmp_path / "alone" / name).read_bytes() == (tmp_path / "killed" / name).read_bytes()


@pytest.mark.long
def test_a_run_killed_before_its_first_checkpoint_starts_from_the_other_again(
    classes: ClassificationRecipe, pretrained: Path, tmp_path: Path
) -> None:
    tuned = changed(classes, init_from=str(pretrained))
    sit(tuned, tmp_path / "alone")
    with pytest.raises(Killed):
        sit(tuned, tmp_path / "killed", kill_at(1, StepFinished))
    sit(tuned, tmp_path / "killed")
    same(tmp_path / "alone", tmp_path / "killed")


@pytest.mark.long
def test_what_does_not_fit_is_named(classes: ClassificationRecipe, pretrained: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"adapter: expected a base run to add the adapter to, found none; give one with --init-from"):
        sit(changed(classes, adapter=LORA), tmp_path / "refused")
    with pytest.raises(
        ConfigError,
        match=r"adapter\.target_modules: expected maps of this text-classifier \(attn\.q, .* found 'cross\.q'; remove this name",
    ):
        sit(changed(classes, init_from=str(pretrained), adapter={"target_modules": ["cross.q"]}), tmp_path / "refused")
    assert not (tmp_path / "refused").exists()
    tuned = changed(classes, init_from=str(pretrained), adapter=LORA)
    with pytest.raises(Killed):
        sit(tuned, tmp_path / "tuned", kill_at(5, StepFinished))
    with pytest.raises(ConfigError, match=r"started with training\.adapter"):
        sit(changed(classes, init_from=str(pretrained), adapter={**LORA, "rank": 3}), tmp_path / "tuned")
    (tmp_path / "tuned" / BASE).unlink()
    with pytest.raises(CheckpointError, match=r"base\.safetensors"):
        sit(tuned, tmp_path / "tuned")


SMALL = {"d_model": 32, "n_heads": 2, "d_ff": 48, "n_encoder_layers": 1, "n_decoder_layers": 1, "max_seq_len": 16, "dropout": 0.0}
ALL = [f"{a}.{x}" for a in ("attn", "cross") for x in "qkvo"] + ["ff.up", "ff.down"]
STEPS: dict[str, Any] = {
    "batch_tokens": 512,
    "grad_accum_steps": 1,
    "learning_rate": 0.005,
    "schedule": {"kind": "cosine", "warmup_steps": 20, "min_lr_ratio": 0.05},
    "precision": "fp32",
    "average": "none",
    "label_smoothing": 0.0,
    "validate_every": 150,
    "checkpoint_every": 300,
    "validate_bleu": 0,
}


def sequences(rule: str, **training: Any) -> TranslationRecipe:
    """Sequences of four letters to copy, or to put into another order."""
    raw = recipe(model=SMALL, **STEPS, **training).model_dump()
    raw["data"]["generate"] |= {"kind": rule, "n_train": 1500, "n_valid": 100, "n_symbols": 12, "min_length": 3, "max_length": 4}
    raw["tokenizer"] = {"kind": "whitespace", "vocab_size": 40, "bpe_dropout": 0.0}
    return TranslationRecipe.model_validate(raw)


@pytest.mark.soak
def test_a_translator_learns_another_task_as_well_as_with_all_weights(tmp_path: Path) -> None:
    sit(sequences("copy", max_steps=300), tmp_path / "copy")
    from_copy: dict[str, Any] = {"init_from": str(tmp_path / "copy"), "max_steps": 300}
    full = {"kind": "lora", "rank": 32, "alpha": 32.0, "target_modules": ALL}
    few = {"kind": "lora", "rank": 4, "alpha": 16.0, "target_modules": ["cross.q", "cross.k", "attn.v"]}
    with RunFolder.create(tmp_path / "untrained") as folder:
        parts = build_training_setup(sequences("reverse", **from_copy), Path(), folder)
    before = measured(parts)[0]["loss"]
    losses = {
        name: sit(sequences("reverse", adapter=adapter, **from_copy), tmp_path / name).best["loss"]
        for name, adapter in (("whole", None), ("full", full), ("few", few))
    }
    assert before > 2
    assert losses["full"] < losses["whole"] + 0.03 < 0.1 and losses["few"] < 0.5 * before
    instruction_tuned = load(tmp_path / "full")
    assert isinstance(instruction_tuned, Translator) and isinstance(instruction_tuned._decoder_backend, FusedSeq2Seq | NativeSeq2Seq)
    said = instruction_tuned.translate(["a b c d", "c a b", "e f a"], beam_size=1)
    assert said == ["d c b a", "b a c", "a f e"]
    few_config, whole_config = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("few", "whole"))
    assert few_config.pop("run") != whole_config.pop("run") and few_config == whole_config
