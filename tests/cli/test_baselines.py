"""Every task against its trivial baseline: reported before step 1, and a warning where training is worse."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Call, sets

TINY = ("training.max_steps=2", "training.validate_every=1", "training.checkpoint_every=1", "training.precision=fp32")
SMALL_TEXT = (*TINY, "model.d_model=16", "model.d_ff=16", "model.n_heads=2", "model.n_layers=1", "training.batch_tokens=512")
TASKS: dict[str, tuple[str, list[str], str]] = {
    "phrasebook": (
        "phrasebook",
        [
            *("data.generate.n_train=300", "data.generate.n_valid=20", "model.d_model=16", "model.d_ff=16", "model.n_heads=2"),
            *("model.n_encoder_layers=1", "model.n_decoder_layers=1", "training.batch_tokens=512", *TINY),
        ],
        "always answering the token frequencies",
    ),
    "languages": ("languages", ["data.generate.n_train=300", *SMALL_TEXT], "always answering the class frequencies"),
    "tagging": ("phrasebook-tags", ["data.generate.n_train=300", *SMALL_TEXT], "always answering the class frequencies"),
    "digits": ("digits-vit", [*TINY, "model.d_model=16", "model.d_ff=16", "model.n_heads=2", "model.n_layers=1"], "class frequencies"),
}


@pytest.mark.long
@pytest.mark.parametrize("task", TASKS)
def test_training_reports_its_baseline_and_warns_where_it_is_worse(transom: Call, tmp_path: Path, task: str) -> None:
    recipe, overrides, predictor = TASKS[task]
    bad = transom(
        "train", recipe, "--out", tmp_path / "bad", *sets(*overrides, "training.learning_rate=30.0", "training.schedule.warmup_steps=1")
    )
    assert bad.code == 0, bad
    before, _, after = bad.err.partition("step 1")
    assert "baseline: loss " in before and predictor in before
    assert "warning: validation loss" in after and "is worse than" in after
    assert "warning: validation loss" in bad.out and "; train longer, change training.learning_rate, or check the data" in bad.out
    page = (tmp_path / "bad" / "report.html").read_text()
    assert "is worse than" in page and "Baseline: validation metrics of a predictor that ignores its input" in page
    data = [json.loads(line) for line in (tmp_path / "bad" / "metrics.jsonl").read_text().splitlines()]
    assert any(record["kind"] == "validation" for record in data)
