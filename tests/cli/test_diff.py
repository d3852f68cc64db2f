"""``transom diff`` names the first site where two runs, prompts, checkpoints or dtypes part."""

from pathlib import Path

import pytest
import torch

from tests.cli.conftest import Call, Trained
from tests.cli.test_images import photos, seeing
from tests.cli.test_language import LanguageRun, spoken
from transom.checkpoints.run_folder import RunFolder
from transom.tasks.load import load
from transom.tasks.load_checkpoint import load_run_or_checkpoint

__all__ = ["photos", "seeing", "spoken"]


def test_a_run_does_not_differ_from_itself(transom: Call, spoken: LanguageRun) -> None:
    lines = transom("diff", spoken.folder, spoken.folder, "the sun").out.splitlines()
    assert lines[0] == "configuration: no difference" and lines[2].startswith("weights: no difference in ")
    assert lines[4].startswith("pass: no difference at ")
    assert transom("diff", spoken.folder, spoken.folder).out.splitlines() == lines[:3]


def test_two_prompts_part_at_the_token_that_differs(transom: Call, spoken: LanguageRun) -> None:
    run = load(spoken.folder)
    one, other = (run.tokenizer.symbols([2, *run.encode(text)]) for text in ("the sun", "the star"))
    position = next(i for i, (x, y) in enumerate(zip(one, other, strict=False)) if x != y)
    lines = transom("diff", spoken.folder, spoken.folder, "the sun", "the star").out.splitlines()
    assert lines[4] == f"the passes part at embedding.resid, position {position} ({one[position]} / {other[position]})"
    assert lines[6] == "  it is the first site of the pass"
    value = transom("diff", spoken.folder, spoken.folder, "the sun", "the star", "--json").json
    assert value["first"]["address"] == "embedding.resid" and value["first"]["position"] == position
    assert all(not any(row[:position]) for each in value["sites"] for row in each["of_rounding_by_position"])


def test_dtypes_differ_by_rounding(transom: Call, trained: Trained) -> None:
    outcome = transom("diff", trained.folder, trained.folder, "ab ba", "--precision", "fp32,bf16", "--all")
    assert "pass: only rounding; the largest difference is 0." in outcome.out and "by no more than their cast" in outcome.out
    assert "both decoders read the translation of the first model: " in outcome.err


def test_checkpoints_are_compared_with_the_run(transom: Call, spoken: LanguageRun) -> None:
    step = RunFolder.open(spoken.folder).checkpoints.steps()[0]
    folder = spoken.folder / "checkpoints" / f"step-{step}"
    tensors = RunFolder.open(spoken.folder).checkpoints.load(step, only=["model"]).groups["model"]
    loaded = dict(load_run_or_checkpoint(folder, "fp32").model.named_parameters())
    assert tensors.keys() == loaded.keys() and all(torch.equal(x, loaded[name]) for name, x in tensors.items())
    value = transom("diff", folder, spoken.folder, "the sun", "--json").json
    own = load(spoken.folder, "fp32").model.state_dict()
    changes = {name: float((x.double() - own[name].double()).abs().max()) for name, x in tensors.items()}
    assert {each["name"]: each["max_difference"] for each in value["weights"]} == {name: x for name, x in changes.items() if x}
    missing = spoken.folder / "checkpoints" / "step-7"
    assert "expected the checkpoint step-7, found step-" in transom("diff", missing, spoken.folder).error


def test_other_architectures_are_compared_by_fields(transom: Call, spoken: LanguageRun, trained: Trained) -> None:
    lines = transom("diff", spoken.folder, trained.folder, "ab").out.splitlines()
    assert lines[0].startswith("configuration: ") and lines[0].endswith(" fields differ")
    assert "kind" in [line.split()[0] for line in lines[2:12]]


def test_pictures_are_compared(transom: Call, seeing: Path, photos: Path) -> None:
    dark, light = (next((photos / name).iterdir()) for name in ("dark", "light"))
    value = transom("diff", seeing, seeing, "--input", dark, "--input", light, "--json").json
    assert value["first"]["address"] == value["sites"][0]["address"] and value["first_unequal"] == value["first"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("a", "b", "c"), "expected one or two TEXT, or one or two --input, found 3 and 0"),
        (("a", "--input", "x.txt"), "expected one or two TEXT, or one or two --input, found 1 and 1"),
        (("a", "--precision", "fp32,int8"), "--precision: expected fp32, bf16 or fp16, or two of them as in fp32,bf16, found 'fp32,int8'"),
        (("the sun " * 40,), "tokens"),
    ],
)
def test_mistakes_are_one_line(options: tuple[str, ...], expected: str, transom: Call, spoken: LanguageRun) -> None:
    assert expected in transom("diff", spoken.folder, spoken.folder, *options).error


def test_both_helps_tell_diff_from_compare(transom: Call) -> None:
    assert "transom compare" in transom("diff", "--help").out and "transom diff" in transom("compare", "--help").out
