"""Warnings about a run worse than a trivial predictor, evaluation on training data, swapped languages, and names of files read as texts."""

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Call, sets
from transom.cli.run_warnings import result_warnings

TINY = (
    *("model.d_model=16", "model.d_ff=16", "model.n_heads=2", "training.max_steps=3", "training.batch_tokens=512"),
    *("training.precision=fp32", "training.fit_to_data=false", "data.min_valid=0"),
)
ENGLISH = ("the old cat sleeps on the warm roof", "a young dog runs along the wide river", "my sister reads a long book in the garden")
GERMAN = ("die alte Katze schläft auf dem warmen Dach", "ein junger Hund läuft am breiten Fluss", "meine Schwester liest ein langes Buch")


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a translator for three steps, from English to German."""
    from transom.cli.main import main

    folder = tmp_path_factory.mktemp("translator")
    for name, lines in (("train.en", ENGLISH), ("train.de", GERMAN)):
        (folder / name).write_text("".join(f"{line} {i}\n" for i in range(40) for line in lines))
    layers = sets(*TINY, "model.n_encoder_layers=1", "model.n_decoder_layers=1", "tokenizer.vocab_size=300", "decoding.max_length=5")
    arguments = ["--source", str(folder / "train.en"), "--target", str(folder / "train.de"), "--out", str(folder / "run"), *layers]
    assert main(["train", "translation", *arguments]) == 0
    return folder


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a classifier with a learning rate at which nothing is learnt."""
    from transom.cli.main import main

    folder = tmp_path_factory.mktemp("classifier")
    (folder / "train.tsv").write_text("".join(f"the cat {'sat' if i % 2 else 'ran'} {i}\t{'yes' if i % 2 else 'no'}\n" for i in range(60)))
    wild = sets(*TINY[:6], "model.n_layers=1", "tokenizer.kind=char", "training.learning_rate=30.0", "training.schedule.warmup_steps=1")
    assert main(["train", "text-classes", "--labeled-data", str(folder / "train.tsv"), "--out", str(folder / "run"), *wild]) == 0
    return folder


def test_the_result_of_a_run_is_a_file(classifier: Path) -> None:
    result = json.loads((classifier / "run" / "result.json").read_text())
    validations = [json.loads(line) for line in (classifier / "run" / "metrics.jsonl").read_text().splitlines()]
    (best,) = (record for record in validations if record["kind"] == "validation" and record["best"])
    assert result["best"]["loss"] == best["loss"] and result["step"] == 3 and result["reason"] == "max_steps"
    assert {each["key"] for each in result["baseline"]} == {"loss", "accuracy"}
    assert any("is worse than always answering the class frequencies" in problem for problem in result["problems"])


def test_a_model_worse_than_a_trivial_predictor_says_so_with_each_answer(transom: Call, classifier: Path, tmp_path: Path) -> None:
    warning = "is worse than always answering "
    run = shutil.copytree(classifier / "run", tmp_path / "run")
    result = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps({**result, "best": {**result["best"], "accuracy": 3.0}}))
    for options in ((), ("--json",)):
        outcome = transom("classify", run, "the cat sat 1", *options)
        assert outcome.code == 0 and outcome.err.count("warning: validation accuracy") == 1 and warning in outcome.err
        assert "expect answers no better than guesses" in outcome.err
    for loss in (0.01, 99.0):
        (run / "result.json").write_text(json.dumps({**result, "best": {**result["best"], "loss": loss, "accuracy": 99.0}}))
        assert transom("classify", run, "the cat sat 1").err == "", "the accuracy decides"
    (run / "result.json").write_text(json.dumps({"format_version": result["format_version"], "best": None}))
    assert "result.json: damaged: a field is missing or of another type" in transom("classify", run, "the cat sat 1").error
    (run / "result.json").unlink()
    assert transom("classify", run, "the cat sat 1").err == "", "runs of early versions have no result"


def test_measuring_on_the_training_data_is_noticed(transom: Call, classifier: Path, translator: Path, tmp_path: Path) -> None:
    remembers = "the figures show what the model remembers, not how it does on new data"
    run, copy = classifier / "run", tmp_path / "copy.tsv"
    shutil.copy(classifier / "train.tsv", copy)
    for path in (classifier / "train.tsv", copy):
        assert f"warning: {path} is training data of {run}: {remembers}" in transom("classify", run, "--labeled-data", path, "--json").err
    copy.write_text(copy.read_text().replace("cat 1\t", "cat 99\t").replace("the cat", "a cat"))
    assert remembers not in transom("classify", run, "--labeled-data", copy).err
    files = ("--source", translator / "train.en", "--target", translator / "train.de")
    found = transom("evaluate", translator / "run", *files)
    assert found.code == 0 and found.err.count(remembers) == 2
    assert transom("compare", translator / "run", translator / "run", *files, "--resamples", "10").err.count(remembers) == 4


def test_the_loss_of_a_translator_decides_and_not_its_bleu(translator: Path, tmp_path: Path) -> None:
    run = shutil.copytree(translator / "run", tmp_path / "run")
    result = json.loads((run / "result.json").read_text())
    assert {each["key"] for each in result["baseline"]} == {"loss", "bleu"}
    result["baseline"] = [{**each, "value": 2.0} for each in result["baseline"]]
    for loss, n_warnings in ((1.0, 0), (3.0, 1)):
        (run / "result.json").write_text(json.dumps({**result, "best": {**result["best"], "loss": loss, "bleu": 0.5}}))
        assert len(found := result_warnings(run)) == n_warnings and "bleu" not in "".join(found)


def test_swapped_source_and_target_are_noticed(transom: Call, translator: Path, tmp_path: Path) -> None:
    for name, lines in (
        ("test.en", ENGLISH),
        ("test.de", GERMAN),
        ("test.es", ("el gato viejo duerme en el tejado caliente de la casa",) * 3),
    ):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    run, (english, german, spanish) = translator / "run", (tmp_path / f"test.{tag}" for tag in ("en", "de", "es"))
    assert "unlike the training sentences" not in transom("evaluate", run, "--source", english, "--target", german).err
    swapped = transom("evaluate", run, "--source", german, "--target", english)
    assert swapped.code == 0
    assert (
        "100% of the source sentences are unlike the training sentences in words and letters; the target sentences are alike" in swapped.err
    )
    assert "perhaps they are in another language" in transom("evaluate", run, "--source", spanish, "--target", german).err


def test_the_name_of_a_file_and_an_empty_text_are_noticed(transom: Call, classifier: Path) -> None:
    named = transom("classify", classifier / "run", str(classifier / "train.tsv"))
    assert named.code == 0
    assert f"train.tsv is a file, but its name is read as one of the texts; --input {classifier / 'train.tsv'} reads its lines" in named.err
    assert "1 of 2 texts are empty: their class says nothing" in transom("classify", classifier / "run", " ", "the cat sat").err
