"""A sample of a run's validation data, by number or name: the row that the validation reads."""

from pathlib import Path

import pytest
import torch

import transom
from tests.serving.runs import Runs
from transom.errors import ConfigError
from transom.tasks.run_data import load_run_data, load_sample


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Train small runs when they are asked for."""
    return Runs(tmp_path_factory.mktemp("runs"))


@pytest.mark.long
def test_pictures_have_numbers_and_names(runs: Runs) -> None:
    """A batch holds the validation pictures in the order of the data; names are those of the samples in the run's metrics."""
    batch = load_run_data(runs["pictures"]).valid[0]
    for number in (0, 3):
        one = load_sample(runs["pictures"], number)
        assert torch.equal(one.pixels, batch.pixels[number : number + 1]) and one.labels.tolist() == [batch.labels[number]]
        assert torch.equal(load_sample(runs["pictures"], str(number)).pixels, one.pixels)
    run = transom.load(runs["pictures"], "fp32")
    assert torch.allclose(run.model(load_sample(runs["pictures"], 3)), run.model(batch)[3:4], atol=1e-5)
    with pytest.raises(ConfigError, match=r"sample: expected a number from 0 to [\d,]+ or a name such as \d/\d+, found '-1'"):
        load_sample(runs["pictures"], "-1")


@pytest.mark.parametrize("name", [pytest.param("translator", marks=pytest.mark.long), "language", "classifier"])
def test_texts_are_numbered_in_the_order_of_the_data(runs: Runs, name: str) -> None:
    """The logits of a sample are those of its row in a validation batch, where padding follows."""
    run, batches = transom.load(runs[name], "fp32"), load_run_data(runs[name]).valid
    rows = sorted(((number, i, row) for i, batch in enumerate(batches) for row, number in enumerate(batch.sample_ids)))
    for number in (0, len(rows) - 1):
        _, i, row = rows[number]
        with torch.no_grad():
            expected, found = run.model(batches[i])[row], run.model(load_sample(runs[name], number))[0]
        n = len(found) if found.ndim == 2 else None
        assert torch.allclose(found, expected[:n], atol=1e-4)
    with pytest.raises(ConfigError, match=f"sample: expected a number from 0 to {len(rows) - 1:,}, found {len(rows)}"):
        load_sample(runs[name], len(rows))


def test_a_run_without_a_recipe_has_no_samples(tmp_path: Path) -> None:
    with pytest.raises(transom.errors.TransomError):
        load_sample(tmp_path, 0)
