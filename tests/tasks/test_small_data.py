"""A person's first run: a few hundred samples and at most a minute, with the recipes for own data as they are."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

import transom
from tests.tiers import tiers
from transom.config.data import PhrasebookConfig
from transom.data.synthetic.phrasebook.generate import generate_phrasebook
from transom.training.events import Event, Forecast, TrainingStarted, ValidationFinished

N_SAMPLES = 500
MINUTES = 1.0


def pairs() -> list[tuple[str, str]]:
    part = generate_phrasebook(PhrasebookConfig(n_train=N_SAMPLES, n_valid=10, n_test=10)).train
    return list(zip(part.source, part.target, strict=True))


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def parallel_files(folder: Path) -> dict[str, Any]:
    return {
        "source": write(folder / "train.en", [source for source, _ in pairs()]),
        "target": write(folder / "train.es", [target for _, target in pairs()]),
    }


def questions_and_statements(folder: Path) -> dict[str, Any]:
    """Return a headered CSV file of English sentences, where the class is what their punctuation shows and their words allow to tell."""
    rows = [f'"{re.sub(r"[?.]", "", source)}",{"question" if "?" in source else "statement"}' for source, _ in pairs()]
    return {"labeled_data": write(folder / "sentences.csv", ["sentence,kind", *rows])}


def text_files(folder: Path) -> dict[str, Any]:
    (folder / "texts").mkdir()
    lines = [source for source, _ in pairs()]
    for number in range(0, len(lines), 25):
        write(folder / "texts" / f"{number:03}.txt", lines[number : number + 25])
    return {"text": folder / "texts"}


def instructions(folder: Path) -> dict[str, Any]:
    rows = [json.dumps({"instruction": "Say it in Spanish.", "input": source, "output": target}) for source, target in pairs()]
    return {"instructions": write(folder / "alpaca.jsonl", rows)}


def image_folders(folder: Path) -> dict[str, Any]:
    digits = load_digits()
    for number, (pixels, label) in enumerate(zip(digits.images[:N_SAMPLES], digits.target, strict=False)):
        place = folder / "digits" / f"digit {label}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray((pixels / 16 * 255).astype(np.uint8)).resize((32, 32)).save(place / f"{number}.png")
    return {"images": folder / "digits"}


RUNS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "translation": parallel_files,
    "text-pairs": parallel_files,
    "text-classes": questions_and_statements,
    "text-bpe": text_files,
    "text-masked": text_files,
    "instructions": instructions,
    "images": image_folders,
}


@pytest.mark.parametrize("recipe", tiers(RUNS, long=["text-classes"]))
def test_a_first_run_beats_the_trivial_baseline_within_a_minute(recipe: str, tmp_path: Path) -> None:
    events: list[Event] = []
    run = transom.train(recipe, tmp_path / "run", minutes=MINUTES, progress=False, callbacks=[events.append], **RUNS[recipe](tmp_path))
    assert not [problem for problem in run.problems if "worse than" in problem], run.problems
    (started,) = (event for event in events if isinstance(event, TrainingStarted))
    baseline = started.facts["data"]["baseline"]
    assert baseline, "a run without a baseline proves nothing"
    for each in baseline:
        value = run.best[each["key"]]
        assert value < each["value"] if each["key"] == "loss" else value > each["value"], f"{each['key']} {value} against {each['value']}"
    assert any(note.startswith("fitted to the amount of training data: ") for note in started.notes)
    forecast, *_ = (event for event in events if isinstance(event, Forecast))
    assert any("passes over the training data" in note for note in forecast.notes)
    assert run.seconds < 1.25 * 60 * MINUTES, "the time limit holds"
    validations = [event for event in events if isinstance(event, ValidationFinished)]
    assert len(validations) >= 4 and all(event.samples for event in validations)
    report = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "<svg" in report and str(validations[-1].samples[0][next(iter(validations[-1].samples[0]))])[:10] in report
