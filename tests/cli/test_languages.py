"""One model into two languages: the packaged recipe on made-up files, every command with --to, and what is said without it."""

from pathlib import Path

import pytest

import transom as package
from tests.cli.conftest import TINY, Call, Trained, sets, write_pairs
from transom.cli.main import main
from transom.config.recipe import load_recipe


@pytest.fixture(scope="session")
def joint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train the recipe of German and French on other words."""
    folder = tmp_path_factory.mktemp("joint")
    for seed, name in enumerate(("train", "val", "test_2016_flickr")):
        source, target = write_pairs(folder, 90, seed)
        (folder / f"{name}.en").write_text(source.read_text())
        (folder / f"{name}.de").write_text(target.read_text())
        (folder / f"{name}.fr").write_text(source.read_text().replace("a", "c"))
    short = sets(f"data.root={folder}", *TINY, "training.max_steps=10", "training.average=none")
    assert main(["train", "multi30k-joint", *short, "--out", str(folder / "run"), "--json"]) == 0
    return folder / "run"


@pytest.mark.long
def test_every_command_takes_the_language(joint: Path, trained: Trained, transom: Call) -> None:
    de, fr = (("--source", joint.parent / "val.en", "--target", joint.parent / f"val.{tag}") for tag in ("de", "fr"))
    found = {tag: transom("translate", joint, "--to", tag, "ab ba", "--json", "--precision", "fp32").json for tag in ("de", "fr")}
    assert all(record[0]["translations"] for record in found.values())
    python = package.load(joint, "fp32").translate(["ab ba"], to="fr")  # type: ignore[union-attr, call-arg]
    assert python == [found["fr"][0]["translations"][0]["text"]]
    evaluated = transom("evaluate", joint, "--to", "fr", *fr, "--json").json
    assert (evaluated["sentences"], evaluated["to"]) == (90, "fr")
    scores = [transom("score", joint, "--to", tag, *de, "--json").json["perplexity"] for tag in ("de", "fr")]
    assert scores[0] != scores[1]
    assert transom("compare", joint, joint, "--to", "de", *de, "--json").json["p_value"] == 1.0
    assert transom("compare", joint, trained.folder, "--to", "de", *de, "--json").code == 0, "the other knows one language"


def test_figures_of_each_language_are_in_the_record_the_report_and_the_card(joint: Path) -> None:
    page, card = (joint / "report.html").read_text(), (joint / "README.md").read_text()
    for words in ("Validation BLEU by target language", "Validation loss by target language", "loss de", "BLEU fr", "Source, to fr"):
        assert words in page, words
    assert "de train" in page and "&lt;2de&gt;" in page and "--to de" in card and 'to="de"' in card
    assert "- `de`: training: `train.en`, `train.de`" in card and "fr (loss" in card
    assert '"loss/de"' in (joint / "metrics.jsonl").read_text()


def test_a_missing_or_needless_language_is_one_line(joint: Path, trained: Trained, transom: Call) -> None:
    files = ("--source", joint.parent / "val.en", "--target", joint.parent / "val.de")
    ledger = joint / "ledger.jsonl"
    before = sorted(path.name for path in joint.iterdir()), ledger.read_bytes() if ledger.exists() else b""
    for command in (("translate", joint, "ab"), ("evaluate", joint, *files), ("score", joint, *files), ("compare", joint, joint, *files)):
        assert "expected a target language, found none; name one of de, fr by --to" in transom(*command).error
        assert "languages de, fr, found 'es'; known: de, fr" in transom(*command, "--to", "es").error
    run = trained.folder
    for command in (("translate", run, "ab"), ("evaluate", run, *files), ("score", run, *files), ("compare", run, run, *files)):
        assert "expected no target language, because the model has only one, found 'de'" in transom(*command, "--to", "de").error
    assert "leave --to out" in transom("score", joint, "--text", joint.parent / "val.en", "--to", "de").error
    assert (sorted(path.name for path in joint.iterdir()), ledger.read_bytes() if ledger.exists() else b"") == before, "nothing was noted"


def test_its_tokenizer_shows_the_languages(joint: Path, transom: Call, tmp_path: Path) -> None:
    assert "target languages de, fr" in transom("tokenizer", "show", joint).out
    shown = transom("tokenizer", "show", joint, "<2de> ab", "--json").json
    assert "<2de>" not in shown["symbols"]["both"]
    made = sets(f"data.root={joint.parent}", "tokenizer.kind=char")
    assert transom("tokenizer", "train", "multi30k-joint", *made, "--out", tmp_path / "t.json").code == 0
    assert "target languages de, fr" in transom("tokenizer", "show", tmp_path / "t.json").out


def test_the_recipes_differ_in_their_languages_only() -> None:
    ours, theirs = (load_recipe(f"multi30k-{name}")[0] for name in ("joint", "en-de"))
    assert ours.model == theirs.model and ours.decoding == theirs.decoding
    assert [language.tag for language in ours.data.languages] == ["de", "fr"]  # type: ignore[attr-defined]
