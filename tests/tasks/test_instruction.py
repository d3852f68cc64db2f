"""Instruction tuning: only answers contribute to the loss, an interrupted run ends identically, and answers end."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.training.conftest import MODEL, TRAINING, changed, measured, sit
from tests.training.test_train_loop import die_and_end_the_same
from transom.checkpoints.run_folder import RunFolder
from transom.decoding.predictors.generator import Generator
from transom.errors import DataError
from transom.tasks.instruction.schema import InstructionRecipe
from transom.tasks.instruction.task import InstructionTask
from transom.tasks.language.schema import LanguageRecipe
from transom.tasks.load import load
from transom.tasks.task import build_training_setup
from transom.training.events import TrainingStarted, ValidationFinished
from transom.training.objectives.objective import CrossEntropy, forward_pass


def instructions(folder: Path, **model: Any) -> InstructionRecipe:
    """Repeat two letters in the given or in reverse order."""
    letters = "abcdefgh"
    lines = [f"{rule} {x} {y}\t{answer}" for x in letters for y in letters for rule, answer in (("copy", f"{x} {y}"), ("swap", f"{y} {x}"))]
    (folder / "lines.tsv").write_text("\n".join(lines))
    data = {"train": {"file": str(folder / "lines.tsv")}, "valid": {"file": str(folder / "lines.tsv")}}
    tokenizer = {"kind": "whitespace", "vocab_size": 40}
    raw = {
        "data": data,
        "tokenizer": tokenizer,
        "model": MODEL | model,
        "training": TRAINING | {"validate_samples": 2},
        "decoding": {"max_new_tokens": 6},
    }
    return InstructionRecipe.model_validate(raw)


@pytest.mark.long
@pytest.mark.parametrize("model", [{}, pytest.param({"mask": "prefix-lm"}, marks=pytest.mark.long)], ids=["causal", "prefix"])
def test_a_killed_run_ends_as_the_run_left_alone(model: dict[str, Any], tmp_path: Path) -> None:
    recipe = instructions(tmp_path, **model)
    die_and_end_the_same(partial(sit, recipe), tmp_path)


@pytest.mark.parametrize("mask", ["causal", "prefix-lm"])
def test_the_loss_is_that_of_each_answer_read_alone(mask: str, tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run") as folder:
        parts = build_training_setup(changed(instructions(tmp_path, mask=mask, dropout=0.0), precision="fp32"), Path(), folder)
    task, model = parts.task, parts.eval_model.double()
    assert isinstance(task, InstructionTask)
    read = task.loader.instructions
    with torch.no_grad():
        nll = CrossEntropy(label_smoothing=0.0).loss(forward_pass(model, packed := read.batch([[0, 1], [2, 3]]))).nll
        total = 0.0
        for i in range(4):
            alone = read.batch([[i]])
            n = len(read.answers[i]) + 1
            total += F.cross_entropy(model(alone)[0, -n:], alone.labels[0, -n:], reduction="sum").item()
    assert packed.decoder_input.segments.max() == 2 and packed.n_target_tokens == sum(len(read.answers[i]) + 1 for i in range(4))
    assert nll.item() == pytest.approx(total, abs=1e-9)
    figures, samples = measured(parts)
    assert {"loss", "perplexity", "accuracy"} == set(figures) and {"text", "class", "found"} == set(samples[0])


@pytest.mark.long
def test_it_learns_to_answer_and_to_stop(tmp_path: Path) -> None:
    slow = {"max_steps": 300, "batch_tokens": 256, "validate_every": 100, "checkpoint_every": 300, "average": "none", "grad_accum_steps": 1}
    recipe = changed(
        instructions(tmp_path, mask="prefix-lm", dropout=0.0, d_model=32, n_layers=2),
        **slow,
        precision="fp32",
        best_checkpoint_metric="accuracy",
    )
    best = sit(recipe, tmp_path / "run").best
    assert best["accuracy"] > 95, best
    generator = load(tmp_path / "run")
    assert isinstance(generator, Generator) and generator.instruction_tuned
    prompts, answers = ["copy a b", "swap c h", "swap d a"], ["a b", "h c", "a d"]
    found = [each for (each,) in generator.continuations(prompts)]
    assert [each.text for each in found] == answers and {each.finish_reason for each in found} == {"end"}
    assert "".join(generator.stream("swap c h")) == "h c"
    assert generator.generate(["swap c h"], stop=[" c"]) == ["h"]


@pytest.mark.long
def test_it_starts_from_a_language_model(tmp_path: Path) -> None:
    texts = "\n".join(f"{x} {y} swap copy {y} {x} {x}" for x in "abcdefgh" for y in "abcdefgh")
    (tmp_path / "text.txt").write_text(texts)
    language = LanguageRecipe.model_validate(
        {
            "data": {"train": {"files": str(tmp_path / "text.txt"), "document": "line"}},
            "tokenizer": {"kind": "whitespace", "vocab_size": 40},
            "model": MODEL,
            "training": {name: value for name, value in TRAINING.items() if name != "validate_samples"},
        }
    )
    sit(language, tmp_path / "language")
    seen: list[Any] = []
    tuned = changed(instructions(tmp_path, mask="prefix-lm"), init_from=str(tmp_path / "language"), adapter={"rank": 2}, max_steps=20)
    sit(tuned, tmp_path / "tuned", seen.append)
    model = RunFolder.open(tmp_path / "tuned").load_config()
    assert getattr(model, "mask").kind == "prefix-lm", "no weight depends on it, so the recipe chooses"  # noqa: B009
    notes = next(e for e in seen if isinstance(e, TrainingStarted)).notes
    assert any("starts from" in note and "newly" not in note for note in notes) and "lora of rank 2" in notes[-1]
    losses = [e.metrics["loss"] for e in seen if isinstance(e, ValidationFinished)]
    assert losses[-1] < losses[0]


def test_too_long_is_asked_counted_and_said(tmp_path: Path) -> None:
    recipe = instructions(tmp_path, max_seq_len=6)
    with RunFolder.create(tmp_path / "run") as folder:
        parts = build_training_setup(recipe, Path(), folder)
    notes = "\n".join(parts.task.report.lines())
    assert "train: 128 instructions longer than the 6 tokens of the context window; only the end of the prompt is kept (line 1, " in notes
    raw = recipe.model_dump()
    raw["data"]["too_long"] = "refuse"
    with pytest.raises(DataError, match=r"lines\.tsv, line 1: expected at most model.max_seq_len = 6 tokens"):
        sit(InstructionRecipe.model_validate(raw), tmp_path / "refused")
    raw["data"]["too_long"] = "drop"
    with pytest.raises(DataError, match="expected instructions of at most 6 tokens, found none"):
        sit(InstructionRecipe.model_validate(raw), tmp_path / "refused")
