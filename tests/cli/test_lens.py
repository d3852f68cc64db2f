"""``transom lens`` prints what the lenses compute, and refuses what they cannot read."""

import re
from pathlib import Path

import pytest
import torch

from tests.cli.conftest import Call, Trained
from tests.cli.test_encoders import classifying, filling, labelled
from tests.cli.test_images import photos, seeing
from tests.cli.test_language import LanguageRun, spoken
from transom.cli import terminal_width
from transom.data.tokenizer.special_tokens import EOS
from transom.inspection.lenses.tuned_lens import FILE, load_tuned_lens
from transom.tasks import progress
from transom.tasks.load import load

__all__ = ["classifying", "filling", "labelled", "photos", "seeing", "spoken"]


@torch.no_grad()
def test_each_stream_is_read(transom: Call, trained: Trained, spoken: LanguageRun, filling: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = load(spoken.folder, "fp32")
    row = [EOS, *run.tokenizer.encode("the sun")]
    p = run.model(torch.tensor([row]))[0, -1].softmax(-1)
    *_, last = transom("lens", "logit", spoken.folder, "the sun", "--json").json["streams"]
    (one,) = last["positions"]
    assert one["rank"] == 1 and one["p"] == pytest.approx(p.max().item(), abs=1e-5) and one["position"] == len(row) - 1
    whole = transom("lens", "logit", spoken.folder, "the sun").out.splitlines()
    monkeypatch.setattr(terminal_width, "terminal_width", lambda: 60)
    lines = transom("lens", "logit", spoken.folder, "the sun").out.splitlines()
    assert lines[2].split() == ["stream", "p", "rank", "KL", "most", "probable"] and lines[3].startswith("embedding ")
    assert max(map(len, whole)) > 60 and lines == [line[:60].rstrip() for line in whole]
    page = transom("lens", "logit", trained.folder, "ab ba")
    assert page.out.startswith("most probable token") and max(map(len, page.out.splitlines())) <= 60
    masked = transom("lens", "logit", filling, "the [MASK] of 3", "--answer", "s", "--json").json
    assert masked["streams"][0]["positions"][0]["answer"] == "▁s"


def test_the_contributions_to_a_logit_are_printed_with_their_sum(transom: Call, classifying: Path, trained: Trained) -> None:
    value = transom("lens", "attribution", classifying, "a wolf of 3", "--answer", "wild", "--against", "pet", "--json").json
    assert value["sum"] == pytest.approx(value["logit"], abs=1e-4) and (value["symbol"], value["against"]) == ("wild", "pet")
    assert sum(each["value"] for each in value["contributions"]) == pytest.approx(value["sum"])
    assert "encoder.blocks.0.attn" in {each["part"] for each in value["contributions"]}
    page = transom("lens", "attribution", trained.folder, "ab ba", "--position", "1").out.splitlines()
    assert page[0].endswith(" at position 1") and page[-1].startswith("sum ") and max(map(len, page)) <= 100
    assert "expected one of the classes" in transom("lens", "attribution", classifying, "a wolf", "--against", "none").error


def test_tokens_and_patches_contribute_to_the_answer(transom: Call, classifying: Path, seeing: Path, photos: Path) -> None:
    value = transom("lens", "inputs", classifying, "a wolf of 3", "--of", "logit", "--json").json
    found = value["contributions"]["source"]
    assert len(found) == len(value["tokens"]["source"]) and value["complete"]
    assert sum(found) == pytest.approx(value["value"] - value["baseline"], abs=value["tolerance"] + 1e-6)
    picture = sorted((photos / "dark").iterdir())[0]
    lines = transom("lens", "inputs", seeing, "--input", picture, "--method", "gradient-x-input").out.splitlines()
    assert lines[2].split() == ["patch", "contribution"] and "gradient x input need not add up" in lines[-1]


def test_a_tuned_lens_is_trained_saved_and_used(
    transom: Call, spoken: LanguageRun, classifying: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "lens.safetensors"
    missing = transom("lens", "logit", spoken.folder, "the sun", "--tuned").error
    assert f"{spoken.folder / FILE}: expected a tuned lens, found no file" in missing
    text = next(spoken.text.iterdir())
    assert "expected a new output file, found the input" in transom("lens", "tune", spoken.folder, "--out", text).error
    value = transom("lens", "tune", spoken.folder, "--steps", "3", "--out", out, "--json").json
    assert all(each["tuned_kl"] <= each["logit_kl"] for each in value["streams"]) and value["file"] == str(out)
    assert load_tuned_lens(load(spoken.folder, "fp32"), out).weight.shape[0] == len(value["streams"])
    outcome = transom("lens", "logit", spoken.folder, "the sun", "--tuned-file", out)
    assert outcome.code == 0
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", -1.0)
    told = transom("lens", "tune", spoken.folder, "--steps", "2", "--out", tmp_path / "other.safetensors").err
    assert re.search(r"1/2 steps\n2/2 steps  \S+/s  .* left\n", told) and "wrote " in told
    assert "expected a tuned lens of this model's weights" in transom("lens", "logit", classifying, "a cat", "--tuned-file", out).error


def test_neurons_are_read_on_validation_data_texts_and_images(
    transom: Call, spoken: LanguageRun, trained: Trained, seeing: Path, photos: Path, tmp_path: Path
) -> None:
    value = transom("lens", "neurons", spoken.folder, "--neuron", "3,1", "--top", "2", "--json").json
    assert [each["neuron"] for each in value["neurons"]] == [3, 1] and value["network"] == "decoder.blocks.0.ff"
    for each in value["neurons"]:
        assert len(each["firings"]) == len(each["promoted"]) == 2
        assert all(f"[{firing['token']}]" in firing["text"] for firing in each["firings"])
    file = tmp_path / "texts.txt"
    file.write_text("ab ba\n\ncab\n")
    lines = transom("lens", "neurons", trained.folder, "--input", file, "--stack", "encoder").out.splitlines()
    assert sum("encoder.blocks.0.ff, neuron " in line for line in lines) == 5 and "promoted" not in "".join(lines)
    assert "promoted: " in transom("lens", "neurons", seeing, "--input", sorted((photos / "dark").iterdir())[0], "--neuron", "0").out


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("logit",), "expected TEXT or --input, found both or neither"),
        (("neurons", "a", "--input", "b"), "expected TEXT or --input, found both"),
        (("neurons", "a", "--block", "9"), "block: expected a number from 0 to 0 in the decoder, found 9"),
        (("logit", "ab " * 300), "expected"),
        (("attribution", "ab", "--against", "ab ba"), "expected a text of one token, found 'ab ba', which has"),
    ],
)
def test_mistakes_end_with_one_line(options: tuple[str, ...], expected: str, transom: Call, trained: Trained) -> None:
    command, *rest = options
    assert expected in transom("lens", command, trained.folder, *rest).error
