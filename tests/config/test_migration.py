"""Former names: each is in the tables, migrates to a present field, is named in errors, and can be rewritten in a file."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.size import ROOT
from transom.cli.main import main
from transom.config.migration import (
    FIELDS,
    METRICS,
    MOVED,
    STATE,
    VALUES,
    list_changes,
    migrate_metrics,
    migrate_state,
    migrate_tables,
    present_tensor_name,
)
from transom.config.recipe import load_recipe
from transom.config.upgrade import upgrade_recipe
from transom.errors import ConfigError

GOLDEN = ROOT / "tests" / "checkpoints" / "golden" / "families"
RUNS = sorted(path.with_suffix("") for path in GOLDEN.glob("*.json"))

OLD = """# my recipe, kept with its comments
task = "language"  # a language model

[data]
train = { files = "notes", document = "line", field = "body" }

[model]
kind = "decoder"
tie = false # not tied: "tie = true" is in this comment
feed_forward = { kind = "mixture", n_experts = 4, balance = { kind = "loss", weight = 0.02 } }
depth = "mixture"

[model.position]
kind = "rotary"
share = 0.5
base = 500.0

[model.attention]
bias = false
pattern = { kind = "cycle", of = [
    { kind = "any", of = [{ kind = "local", size = 8 }, { kind = "global", size = 2 }] },
    "logarithmic",
] }

[training]
max_steps = 3
accumulate = 2
clip_norm = 0.5
token_dropout = 0.1
processes = 2  # of this machine
schedule = { kind = "cosine", final = 0.2 }
"""


def test_a_recipe_is_rewritten_with_its_comments_and_order() -> None:
    new, changes = upgrade_recipe(OLD, "old.toml")
    assert tomllib.loads(new) == migrate_tables(tomllib.loads(OLD))
    assert new.count("#") == OLD.count("#")
    for line in (
        "# my recipe, kept with its comments",
        'tie_embeddings = false # not tied: "tie = true" is in this comment',
        'depth = "mod"',
        "partial_rotary_factor = 0.5",
        "rope_theta = 500.0",
        '    { kind = "any", patterns = [{ kind = "block-local", size = 8 }, { kind = "global", size = 2 }] },',
        "blank_noising = 0.1",
        'schedule = { kind = "cosine", min_lr_ratio = 0.2 }',
        "[parallel]",
        "data = 2  # of this machine",
    ):
        assert line in new.split("\n")
    assert len(changes) == 19
    assert upgrade_recipe(new, "new.toml") == (new, [])


def test_the_command_upgrades_a_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (file := tmp_path / "old.toml").write_text(OLD)
    assert main(["recipes", "upgrade", str(file), "--output", str(tmp_path / "new.toml"), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["changes"][0] == {"field": "data.train.field", "old": "field", "new": "text_field"}
    assert file.read_text() == OLD
    assert main(["recipes", "upgrade", str(file)]) == 0
    assert "training.accumulate: accumulate -> grad_accum_steps" in capfd.readouterr().out
    assert file.read_text() == (tmp_path / "new.toml").read_text()
    assert main(["recipes", "upgrade", str(file)]) == 0
    assert "nothing to change" in capfd.readouterr().out
    assert main(["recipes", "upgrade", str(tmp_path / "none.toml")]) == 2


def test_a_layout_that_cannot_be_rewritten_is_refused_and_left_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (file := tmp_path / "odd.toml").write_text('task = "language"\n[training]\n"accumulate" = 2\n')
    assert main(["recipes", "upgrade", str(file)]) == 2
    assert "rename by hand: training.accumulate: accumulate -> grad_accum_steps" in capfd.readouterr().err
    assert '"accumulate" = 2' in file.read_text()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.accumulate=2", "unknown field training.accumulate, which was renamed to training.grad_accum_steps"),
        (
            "model.position={kind='rotary', share=0.5}",
            "unknown field model.position.share, which was renamed to model.position.partial_rotary_factor",
        ),
        ("training.token_dropout=0.1", "renamed to training.blank_noising"),
        ("training.processes=2", "unknown field training.processes, which was renamed to parallel.data"),
        ("model.feed_forward=mixture", "'mixture', which was renamed to 'moe'"),
        ("model.attention.pattern={kind='any', of=['local']}", "renamed to model.attention.pattern.patterns"),
        ("training.learning_rate=paper", "renamed to 'noam'"),
    ],
)
def test_a_former_name_is_refused_with_the_present_one(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match="transom recipes upgrade") as error:
        load_recipe("text-bpe", ["data.train.files=x", override])
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_a_run_of_format_2_has_a_recipe_in_present_names_only(run: Path) -> None:
    raw = tomllib.loads((run / "recipe.toml").read_text())
    once = migrate_tables(raw)
    assert migrate_tables(once) == once and not list_changes(once)
    recipe = load_recipe(run / "recipe.toml")[0]
    assert recipe.training.grad_accum_steps == raw["training"]["accumulate"]


def test_every_table_is_met_by_a_former_recipe() -> None:
    """Each renamed field and value is in a golden run, in OLD, or here."""
    more: list[dict[str, Any]] = [
        {
            "task": "translation",
            "tokenizer": {"dropout": 0.1},
            "data": {"temperature": 2.0},
            "model": {"position": {"kind": "rotary", "scaling": "yarn", "trained_seq_len": 8}, "mask": "prefix"},
            "training": {"schedule": {"kind": "wsd", "decay": 0.2}, "learning_rate": "paper"},
        },
        {
            "task": "image-classification",
            "data": {"valid_share": 0.1},
            "model": {
                "pool": "start",
                "stem": {"kind": "convolutional", "depth": 2, "attention": {"kind": "cbam", "kernel": 3}},
                "attention": {"output": False, "pattern": {"kind": "logarithmic", "local": 3}},
                "feed_forward": {"kind": "mixture", "capacity": 2.0, "balance": {"kind": "bias", "rate": 0.1}},
                "depth": {"kind": "mixture", "weight": 0.1},
            },
            "training": {"augmentation": {"zoom": 0.1, "n_bands": 1, "n_times": 1, "bands": 1}, "schedule": "paper"},
        },
        {"task": "tagging", "decoding": {"words": "space"}},
        {"task": "classification", "training": {"token_dropout": 0.1}},
        {"task": "language", "decoding": {"exit_threshold": 0.9}},
    ]
    recipes = [*more, tomllib.loads(OLD), *(tomllib.loads((run / "recipe.toml").read_text()) for run in RUNS)]
    changes = [change for raw in recipes for change in list_changes(raw)]
    fields = {(change.old, change.new) for change in changes if not change.is_value}
    moved = {(old[-1], ".".join(new)) for old, new in MOVED.items()}
    assert {pair for renamed in FIELDS for pair in renamed.fields.items()} | moved == fields
    assert {(old, new) for _, old, new in VALUES} == {(change.old, change.new) for change in changes if change.is_value}


def test_metrics_state_and_tensors() -> None:
    record = dict.fromkeys(METRICS, 0.5)
    assert migrate_metrics(record) == dict.fromkeys(METRICS.values(), 0.5) == migrate_metrics(migrate_metrics(record))
    state = {"progress": {**dict.fromkeys(STATE, 1), "window": {"dropped": 2}}}
    assert migrate_state(state) == {"progress": {**dict.fromkeys(STATE.values(), 1), "window": {"expert_overflow": 2}}}
    names = {
        "encoder.layers.0.ahead.kernel.weight_ih_l0": "encoder.layers.0.forward_rnn.rnn.weight_ih_l0",
        "encoder.layers.1.back.kernel.bias_hh_l0.exp_avg": "encoder.layers.1.backward_rnn.rnn.bias_hh_l0.exp_avg",
        "decoder.layers.0.kernel.weight_hh_l0": "decoder.layers.0.rnn.weight_hh_l0",
        "decoder.start.weight": "decoder.bridge.weight",
        "decoder.joined.weight": "decoder.output_proj.weight",
        "embedding.stem.stages.0.1.kernel.weight": "embedding.stem.stages.0.1.conv.weight",
        "embedding.patches.bias": "embedding.projection.bias",
        "decoder.mixes.0.pair": "decoder.value_residuals.0.pair",
    }
    assert {old: present_tensor_name(old) for old in names if old != "decoder.mixes.0"} == {
        k: v for k, v in names.items() if k != "decoder.mixes.0"
    }
