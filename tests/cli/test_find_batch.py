"""``transom find-batch``: two settings, in words and as JSON, and its errors."""

import json
from typing import Any

import pytest

from tests.cli.conftest import Call
from transom.training import find_batch as module
from transom.training.memory_trial import Trial

SMALL = [
    "copy",
    "--set",
    "model.d_model=16",
    "--set",
    "model.n_heads=2",
    "--set",
    "model.n_encoder_layers=1",
    "--set",
    "model.n_decoder_layers=1",
]


def test_the_settings_are_printed_for_train(transom: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[Any]()

    def attempt(*arguments: Any) -> Trial:
        asked.append(arguments)
        return Trial(True, 2**28, 2**29, 1.0)

    monkeypatch.setattr(module, "try_steps", attempt)
    page, value = transom("find-batch", *SMALL, "--memory", "3GiB"), transom("find-batch", *SMALL, "--memory", "3GiB", "--json")
    lines = page.out.splitlines()
    assert lines[-2:] == [f"--set {each}" for each in json.loads(value.out)["set"]] and max(map(len, lines)) <= 160
    assert "largest micro-batch that fits into 3.0 GiB" in lines[0] and "a trial used 512.0 MiB, and 256.0 MiB are reserved" in lines[1]
    assert "trying" in page.err and not value.err
    assert asked[0][-1] == 3 * 2**30 and value.json["limit"] == 3 * 2**30


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["copy", "--memory", "much"], "--memory: expected a size above 0, found 'much'"),
        (["copi"], "expected a preset, a recipe or the path of a .toml file, found 'copi'"),
        ([*SMALL, "--memory", "1MiB"], "--memory: expected memory for one row of"),
    ],
)
def test_bad_input_is_refused_in_one_line(arguments: list[str], message: str, transom: Call) -> None:
    assert message in transom("find-batch", *arguments).error
