"""``transom compare-attention``: every family, the page, and mistakes in one line."""

from pathlib import Path

import pytest
from PIL import Image

from tests.cli.conftest import Call, Trained, sets
from tests.cli.test_language import TINY, LanguageRun, spoken
from transom.cli.main import main

__all__ = ["spoken"]
QUICK = ("--repeats", "1", "--features", "8", "--ranks", "4", "--windows", "4")


@pytest.fixture(scope="session")
def linear(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a tiny language model with linear attention."""
    folder = tmp_path_factory.mktemp("linear")
    (folder / "text.txt").write_text("the sun and the moon and the star\n" * 60)
    fields = [*TINY, "model.attention.approximation=linear"]
    assert main(["train", "text-bpe", "--text", str(folder / "text.txt"), *sets(*fields), "--out", str(folder / "run"), "--json"]) == 0
    return folder / "run"


@pytest.mark.long
def test_a_table_for_people(transom: Call, spoken: LanguageRun, tmp_path: Path) -> None:
    text = ("--text", "the moon of 7 is moonmoon")
    done = transom("compare-attention", spoken.folder, *text, *QUICK, "--lengths", "32,64", "--out", tmp_path / "page.html")
    lines = done.out.splitlines()
    assert (
        done.code == 0
        and lines[0].startswith("mean over 1 attention layers, ")
        and lines[1].split() == ["attention", "error", "weights", "error", "ms", "MB"]
    )
    rows = [line.split("  ")[0] for line in lines]
    assert rows.count("performer, 8 features") == 4 and "32 tokens" in lines and "linear, elu" in rows
    assert any("nothing is retrained" in line for line in lines)
    page = (tmp_path / "page.html").read_text()
    assert "performer, 8 features" in page and "Error of performer attention, in %" in page and page.count("<svg") == 3


@pytest.mark.long
def test_a_page_measures_lengths_of_its_own(transom: Call, spoken: LanguageRun, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "page.html")
    value = transom("compare-attention", spoken.folder, "--text", "the moon", *QUICK, *out, "--json").json
    assert list(value["lengths"]) == ["64", "256", "1024"]
    assert not transom("compare-attention", spoken.folder, "--text", "the moon", *QUICK, *out, "--lengths", "", "--json").json["lengths"]
    assert "<svg" not in (tmp_path / "page.html").read_text()


def test_json_has_layers_lengths_and_notes(transom: Call, spoken: LanguageRun, tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("the sun of 1 is sunsun\n" * 30)
    value = transom("compare-attention", spoken.folder, "--input", tmp_path / "long.txt", *QUICK, "--lengths", "32", "--json").json
    assert value["tokens"] == {"decoder.blocks.0.attn": 16} and set(value["lengths"]) == {"32"}
    assert value["layers"]["decoder.blocks.0.attn"] == value["kinds"]
    assert {"kind", "output_error", "weights_error", "seconds", "bytes"} == set(value["kinds"][0])
    assert any("was truncated to the context window of 15 tokens" in note for note in value["notes"])
    assert not any("has only" in note for note in value["notes"])


def test_a_translator_reads_its_own_translation(transom: Call, trained: Trained) -> None:
    value = transom("compare-attention", trained.folder, "--text", "ab ba cab", *QUICK, "--windows", "4,64", "--json").json
    assert list(value["tokens"]) == ["encoder.blocks.0.attn", "decoder.blocks.0.attn", "decoder.blocks.0.cross"]
    assert any("the model's own translation" in note for note in value["notes"])
    assert any("windows and ranks of 64 are skipped, since the text has only" in note for note in value["notes"])


@pytest.mark.long
def test_a_run_that_learned_with_an_approximation(transom: Call, linear: Path) -> None:
    value = transom("compare-attention", linear, "--text", "the sun and the moon", *QUICK, "--json").json
    assert any("trained with approximation = 'linear'" in note for note in value["notes"])
    assert "approximate attention: linear" in (linear / "README.md").read_text()
    said = transom("generate", linear, "the sun", "--precision", "fp32", "--json").json
    assert said[0]["continuations"][0]["n_tokens"] > 0


def test_images(transom: Call, tmp_path: Path) -> None:
    short = ("training.max_steps=2", "training.validate_every=2", "training.batch_size=8", "model.n_layers=1")
    assert main(["train", "digits-vit", *sets(*short), "--out", str(tmp_path / "run"), "--json"]) == 0
    Image.new("L", (8, 8), 40).save(tmp_path / "digit.png")
    value = transom("compare-attention", tmp_path / "run", "--input", tmp_path / "digit.png", *QUICK, "--json").json
    assert any(cost["kind"] == "nystrom, 4 landmarks" for cost in value["kinds"])
    assert "give one with --input" in transom("compare-attention", tmp_path / "run", "--text", "x").error
    refused = transom("compare-attention", tmp_path / "run", "--input", tmp_path / "digit.png", "--too-long", "refuse").error
    assert "expected --too-long only with a model of texts, found --too-long with" in refused
    (tmp_path / "no.png").write_text("no image")
    assert "no.png" in transom("compare-attention", tmp_path / "run", "--input", tmp_path / "no.png").error


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("RUN",), "expected --text or --input, found both or neither"),
        (("RUN", "--text", "a", "--input", "b"), "expected --text or --input, found both or neither"),
        (("RUN", "--text", ""), "--text: expected a text of at least one token, found none"),
        (("RUN", "--input", "nowhere.txt"), "nowhere.txt: no such file"),
        (("nowhere", "--text", "a"), "nowhere"),
        (("RUN", "--text", "a", "--lengths", "12,x"), "--lengths: expected numbers from 1 to 65,536 separated by commas"),
        (("RUN", "--text", "a", "--lengths", "9" * 5_000), "--lengths: expected numbers from 1 to 65,536"),
        (("RUN", "--text", "a", "--features", "0"), "--features: expected numbers from 1"),
        (("RUN", "--text", "a", "--ranks", "99999"), "--ranks: expected numbers from 1"),
        (("RUN", "--text", "a", "--repeats", "0"), "invalid value for '--repeats'"),
        (("RUN", "--text", "a", "--out", "missing/page.html", *QUICK), "missing"),
    ],
)
def test_mistakes_get_one_line(transom: Call, spoken: LanguageRun, arguments: tuple[str, ...], words: str) -> None:
    assert words in transom("compare-attention", *(spoken.folder if part == "RUN" else part for part in arguments)).error


def test_a_recurrent_run_is_refused(transom: Call, tmp_path: Path) -> None:
    (tmp_path / "input.txt").write_text("to be or not to be\n" * 40)
    fields = ("model.d_model=8", "model.n_layers=1", "model.max_seq_len=16", "training.max_steps=1", "training.precision=fp32")
    trained = transom("train", "shakespeare-lstm", *sets(*fields, f"data.root={tmp_path}"), "--out", tmp_path / "run", "--json")
    assert trained.code == 0
    assert "expected a run of a Transformer, found model.kind" in transom("compare-attention", tmp_path / "run", "--text", "to be").error
