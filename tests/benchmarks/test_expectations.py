"""Quality by examples and minutes: each study trains on tiny data in the format of the real ones, and records become a page."""

import json
import random
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from benchmarks import expectations, tables

RECORD: dict[str, Any] = {
    "task": "translation",
    "examples": 1000,
    "unit": "sentence pairs",
    "minutes": 5,
    "metric": "BLEU",
    "value": 12.481,
    "model": "translation model: an encoder-decoder, 1,503,744 parameters",
    "steps": 1200,
    "ended": "max_steps",
    "seconds": 175.0,
    "facts": {"processor": "a processor", "versions": {"torch": "2.13.0"}},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write data sets of the same files and formats as the real ones, with a hundredth of their samples."""
    folder, draw = tmp_path_factory.mktemp("data"), random.Random(0)
    words = ["cat", "dog", "man", "woman", "runs", "sits", "sleeps", "red", "blue", "old"]
    sentences = [" ".join(draw.choices(words, k=draw.randint(3, 8))) for _ in range(300)]
    (folder / "multi30k").mkdir()
    for name, part in (("train", sentences[:250]), ("test_2016_flickr", sentences[250:])):
        (folder / "multi30k" / f"{name}.en").write_text("\n".join(part) + "\n")
        (folder / "multi30k" / f"{name}.de").write_text("\n".join(line.upper() for line in part) + "\n")
    (folder / "sst2").mkdir()
    for name, part in (("train", sentences[:250]), ("dev", sentences[250:])):
        (folder / "sst2" / f"{name}.tsv").write_text("".join(f"{line}\t{int('red' in line)}\n" for line in part))
    (folder / "tinyshakespeare").mkdir()
    (folder / "tinyshakespeare" / "input.txt").write_text("\n\n".join(f"Citizen:\n{line}" for line in sentences))
    (folder / "cifar10").mkdir()
    with zipfile.ZipFile(folder / "cifar10" / "train.zip", "w") as archive:
        for i in range(240):
            picture, file = np.full((32, 32, 3), 200 * (i % 2), np.uint8), BytesIO()
            picture[i % 32] = i
            Image.fromarray(picture).save(file, "JPEG")
            archive.writestr(f"train/{'dark' if i % 2 == 0 else 'light'}/{i}.jpg", file.getvalue())
    return folder


@pytest.mark.long
@pytest.mark.parametrize("task", expectations.STUDIES)
def test_a_study_is_measured_once(task: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expectations, "N_TEST_IMAGES", 40)
    arguments = ["--data", data, "--tasks", task, "--examples", "200", "--minutes", "0.05", "--out", tmp_path / "runs"]
    results = tmp_path / "results.json"
    for _ in range(2):
        expectations.main([*map(str, arguments), "--results", str(results)])
    (record,) = json.loads(results.read_text())
    assert (record["task"], record["examples"], record["minutes"]) == (task, 200, 0.05) and record["steps"] > 0
    low, high = {"translation": (0, 100), "classification": (0, 100), "images": (0, 100), "language": (0.5, 9)}[task]
    assert low <= record["value"] <= high
    assert record["metric"] in tables.expectation_tables([record])


def test_the_page_has_the_recorded_figures() -> None:
    records = json.loads(tables.EXPECTATIONS.read_text())
    assert tables.results_section(tables.EXPECTATIONS_PAGE.read_text()) == tables.expectation_tables(records)
    for task in {record["task"] for record in records}:
        assert tables.EXPECTATIONS_PAGE.with_name(f"expectations-{task}.svg").read_text() == tables.expectation_chart(records, task)


def test_records_become_a_table_and_a_chart() -> None:
    records = [RECORD, {**RECORD, "minutes": 20, "value": 13.5, "ended": "patience"}, {**RECORD, "examples": 5000, "value": 20.25}]
    text, chart = tables.expectation_tables(records), tables.expectation_chart(records, "translation")
    header, _, first, second = (line for line in text.splitlines() if line.startswith("|"))
    assert header == "| sentence pairs | BLEU after 5 minutes | BLEU after 20 minutes | trained, 5 minutes | trained, 20 minutes |"
    trained = "1,503,744 parameters, 1,200 steps in 2.9 minutes"
    assert first == f"| 1,000 | 12.5 | 13.5 | {trained}, all steps of the recipe | {trained}, no longer improving |"
    assert second.startswith("| 5,000 | 20.2 |  |") and second.endswith("|  |")
    assert "One core of: a processor; torch 2.13.0." in text and "expectations-translation.svg" in text
    assert chart.startswith("<svg") and "5 minutes" in chart and "20 minutes" in chart and "sentence pairs" in chart
