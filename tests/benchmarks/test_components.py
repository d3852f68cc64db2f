"""Every component has a model in the benchmark, and records become tables."""

import json
import random
from pathlib import Path

import pytest

from benchmarks import components, tables
from transom.config.component_docs import TABLES


def test_every_component_has_a_model_that_differs_from_the_base_unless_it_is_the_default() -> None:
    found = list(components.unique_variants(20, "data").values())
    names = [name for _, _, names in found for name in names]
    for table in TABLES:
        for kind in components.list_kinds(table):
            assert f"{table.field.removeprefix('model.')} {kind}" in names, kind
    shared = {name for model, _, names in found for name in names if model.name == "base"}
    assert {
        "norm rmsnorm",
        "position rotary",
        "feed_forward swiglu",
        "training.early_exit_loss none",
        "cell lstm",
        "stem convolutional",
    } < shared
    assert (
        not {
            "from scratch",
            "training.adapter lora",
            "norm dyt",
            "model n_kv_heads",
            "training.early_exit_loss linear",
            "stem none",
            "mask prefix-lm",
        }
        & shared
    )


def test_committed_records_have_the_settings_of_the_present_models() -> None:
    recorded = [(row["family"], row["names"], row["settings"]) for row in json.loads(tables.COMPONENTS.read_text(encoding="utf-8"))["rows"]]
    models = components.unique_variants(components.STEPS, "data/tinyshakespeare").values()
    assert sorted(recorded) == sorted((model.family, names, fields) for model, fields, names in models)


@pytest.mark.soak
def test_components_are_trained_once_and_shown_in_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "input.txt").write_text("".join(random.Random(1).choices("to be or not\n", k=90_000)))
    arguments = ["--root", str(tmp_path), "--out", str(tmp_path / "runs"), "--results", str(tmp_path / "components.json"), "--steps", "3"]
    only = ["--only", "early_exit_loss none", "early_exit_loss linear", "stem.attention se", "adapter lora"]
    components.main([*arguments, *only])
    assert "1 of 6: decoder, base" in capsys.readouterr().out
    written = (tmp_path / "components.json").read_text()
    rows = {row["names"][0]: row for row in json.loads(written)["rows"]}
    base, early, se = rows["base"], rows["training.early_exit_loss linear"], rows["stem.attention se"]
    assert rows["training.adapter lora"]["family"] == "fine-tuning"
    assert base["parameters"] == early["parameters"] and base["n_steps"] == se["n_steps"] == 3 and "early_exit" not in base
    assert all(row["ms_per_step"] > 0 and row["validation"]["loss"] > 0 for row in rows.values())
    depths = [each["blocks"] for each in early["early_exit"]]
    assert depths == sorted(depths) and depths[-1] == 4, "a higher threshold exits later"
    components.main([*arguments, *only])
    assert "1 of" not in capsys.readouterr().out and json.loads((tmp_path / "components.json").read_text())["rows"] == list(rows.values())
    page = tables.component_tables(json.loads(written))
    assert "| training.early_exit_loss linear | " in page and "#### vision, 3 steps" in page and "#### Early exit" in page
    assert page.count("| training.early_exit_loss linear | ") == 1 + len(components.EXIT_THRESHOLDS)
