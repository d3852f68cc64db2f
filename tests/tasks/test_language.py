"""Language modeling: metrics, messages, and that an interrupted run ends identically."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.training.conftest import measured
from tests.training.test_train_loop import die_and_end_the_same
from transom.checkpoints.run_folder import RunFolder
from transom.decoding.predictors.generator import Generator
from transom.errors import DataError
from transom.tasks.language.schema import LanguageRecipe
from transom.tasks.language.task import LanguageTask
from transom.tasks.load import load
from transom.tasks.task import build_training_setup
from transom.training.events import TrainingFinished
from transom.training.setup import TrainingSetup
from transom.training.train_loop import train

WORDS = ["red", "green", "blue", "sky", "tree"]


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    (tmp_path / "text").mkdir()
    for i in range(30):
        words = " ".join(WORDS[(i * k) % 5] for k in range(1, 6 + i % 7))
        (tmp_path / "text" / f"{i:02}.txt").write_text(f"{i} {words}\n")
    return tmp_path / "text"


def recipe(texts: Path, max_seq_len: int = 16, **training: Any) -> LanguageRecipe:
    return LanguageRecipe.model_validate(
        {
            "data": {"train": {"files": str(texts)}},
            "tokenizer": {"kind": "bpe", "vocab_size": 280},
            "model": {"d_model": 8, "n_layers": 1, "n_heads": 2, "d_ff": 16, "max_seq_len": max_seq_len, "dropout": 0.1},
            "training": {
                "max_steps": 10,
                "batch_tokens": 64,
                "grad_accum_steps": 2,
                "learning_rate": 0.01,
                "precision": "bf16",
                "average": {"kind": "checkpoints", "n_checkpoints": 2},
                "validate_every": 4,
                "validate_samples": 1,
                "checkpoint_every": 3,
                "log_every": 2,
                **training,
            },
            "decoding": {"max_new_tokens": 8},
        }
    )


def parts(texts: Path, out: Path, **training: Any) -> tuple[RunFolder, TrainingSetup]:
    folder = RunFolder.create(out, resume=True)
    return folder, build_training_setup(recipe(texts, **training), Path(), folder)


def sit(texts: Path, out: Path, *callbacks: Any, **training: Any) -> TrainingFinished:
    with RunFolder.create(out, resume=True) as folder:
        return train(build_training_setup(recipe(texts, **training), Path(), folder), callbacks)


@pytest.mark.long
def test_a_killed_run_ends_as_the_run_left_alone(texts: Path, tmp_path: Path) -> None:
    die_and_end_the_same(partial(sit, texts, blank_noising=0.2), tmp_path)


def test_validation_reads_all_text_once_in_nats_and_bits(texts: Path, tmp_path: Path) -> None:
    folder, made = parts(texts, tmp_path / "run", precision="fp32")
    with folder:
        task = made.task
        assert isinstance(task, LanguageTask)
        figures, samples = measured(made)
    generator = Generator(made.eval_model, task.tokenizer)  # type: ignore[arg-type]
    scores = generator.score(task.valid.texts)
    n_tokens = sum(score.n_tokens for score in scores)
    assert figures["bits_per_byte"] == pytest.approx(figures["loss"] * n_tokens / math.log(2) / task.valid.n_bytes)
    assert figures["perplexity"] == pytest.approx(math.exp(figures["loss"]))
    assert figures["loss"] * n_tokens == pytest.approx(-sum(score.log_p for score in scores), rel=1e-5)
    assert [sorted(sample) for sample in samples] == [["continuation", "prompt"]]


@pytest.mark.long
def test_a_run_answers_and_its_text_must_stay(texts: Path, tmp_path: Path) -> None:
    sit(texts, tmp_path / "run")
    generator = load(tmp_path / "run")
    assert isinstance(generator, Generator) and generator.sampling.max_new_tokens == 8
    assert generator.generate(["red"]) == generator.generate(["red"])
    (texts / "00.txt").write_text("other\n")
    with pytest.raises(DataError, match="expected the run's original data"):
        sit(texts, tmp_path / "run", max_steps=12)


def test_the_report_counts_and_names(texts: Path, tmp_path: Path) -> None:
    (texts / "double.txt").write_text((texts / "03.txt").read_text())
    folder, made = parts(texts, tmp_path / "run")
    folder.close()
    report = made.task.report.to_json()
    assert report["text"]["train"]["documents"] + report["text"]["valid"]["documents"] == 31
    assert report["text"]["train"]["tokens"] == made.task.loader.stream.n_tokens  # type: ignore[attr-defined]
    assert any("the same as an earlier one" in problem and "double.txt" in problem for problem in report["problems"])
    lines = "\n".join(made.task.report.lines())
    assert "windows: " in lines and "train: " in lines and "warning: " in lines
    assert made.task.describe_sample(0).endswith(", token 0")
