"""``transom train text-classes --second-field`` and ``transom classify`` on pairs of texts."""

import random
from pathlib import Path

import pytest

from tests.cli.conftest import Call, sets
from tests.cli.test_encoders import TINY
from transom.checkpoints.run_folder import RunFolder
from transom.cli.main import main
from transom.config.recipe import load_recipe
from transom.decoding.predictors.classifier import Classifier
from transom.tasks.load import load

COLORS = ("red", "blue", "green", "gray", "pink", "gold")
SMALL = (
    *("tokenizer.kind=wordpiece", "tokenizer.vocab_size=100", "model.n_token_types=2", "model.pooling=cls", "model.max_seq_len=16"),
    *("model.d_model=32", "model.d_ff=64", "model.n_layers=2", "model.dropout=0", "model.pooler_dropout=0", "training.fit_to_data=false"),
    *("training.batch_tokens=1024", "training.max_steps=150", "training.validate_every=50", "training.learning_rate=0.005"),
    *("training.schedule.warmup_steps=20", "training.precision=fp32"),
)


def _shared_words(n: int) -> str:
    """Return lines with two words, two other words, and whether a word is among both."""
    draw, lines = random.Random(1), list[str]()
    for _ in range(n):
        first = draw.sample(COLORS, 2)
        second = draw.sample([word for word in COLORS if word not in first], 2)
        if shares := draw.random() < 0.5:
            second[draw.randrange(2)] = draw.choice(first)
        lines.append(f"{' '.join(first)}\t{' '.join(second)}\t{'yes' if shares else 'no'}\n")
    return "".join(lines)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write pairs of texts with their classes."""
    path = tmp_path_factory.mktemp("pairs") / "pairs.tsv"
    path.write_text(f"premise\thypothesis\tlabel\n{_shared_words(60)}")
    return path


@pytest.fixture(scope="module")
def run(data: Path) -> Path:
    """Train a tiny classifier once."""
    out = data.parent / "run"
    options = ("--second-field", "hypothesis", *sets(*TINY, "model.n_token_types=2", "training.word_dropout=0.1"))
    assert main(["train", "text-classes", "--labeled-data", str(data), *options, "--out", str(out), "--json"]) == 0
    return out


def test_a_pair_is_classified_in_each_way(run: Path, data: Path, transom: Call, tmp_path: Path) -> None:
    classifier = load(run, precision="fp32", kind=Classifier)
    pairs = [("red blue", "gold red"), ("pink gray", "gold red")]
    expected = [each.probabilities for each in classifier.classify([*pairs, "red blue"])]
    assert expected[0] != expected[2] and [list(each) for each in classifier.predict_proba([*pairs, "red blue"])] == [
        pytest.approx([each[label] for label in classifier.classes_]) for each in expected
    ]
    (tmp_path / "pairs.tsv").write_text("".join(f"{first}\t{second}\n" for first, second in pairs))
    for arguments in (("red blue", "pink gray", "--second", "gold red"), ("--paired", "--input", tmp_path / "pairs.tsv")):
        told = transom("classify", run, *arguments, "--precision", "fp32", "--json")
        assert [(each["text"], each["second"]) for each in told.json] == pairs and "looks like a table" not in told.err
        assert [each["probabilities"] for each in told.json] == [pytest.approx(each) for each in expected[:2]]
    assert transom("classify", run, "red blue", "--precision", "fp32", "--json").json[0]["probabilities"] == pytest.approx(expected[2])


def test_labeled_pairs_are_read_as_in_training(run: Path, data: Path, transom: Call, tmp_path: Path) -> None:
    found = transom("classify", run, "--labeled-data", data, "--json").json
    assert found["n"] == 60 and all(each["item"].count(" [SEP] ") == 1 for each in found["errors"])
    (tmp_path / "plain.tsv").write_text(_shared_words(20))
    other = transom(
        "classify", run, "--labeled-data", tmp_path / "plain.tsv", "--second-field", "1", "--no-header", "--text-field", "0", "--json"
    )
    assert other.json["n"] == 20
    assert transom("compare", run, run, "--labeled-data", data, "--json").json["n_only_a_right"] == 0
    record = RunFolder.open(run).metrics.read()
    samples = next(each["samples"] for each in reversed(record) if "samples" in each)
    assert "--second" in load_recipe(run / "recipe.toml")[0].example[0]
    assert samples and all(each["text"].count(" [SEP] ") == 1 for each in samples)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("a", "--second", "b", "--paired"), "expected --second or --paired, found both; remove one"),
        (("a b", "--paired"), "--paired: expected two texts separated by a tab, found 'a b'; correct it, or leave --paired out"),
        (("a", "--second", "b", "--too-long", "window"), "too_long: expected 'truncate' or 'refuse' for pairs of texts, found 'window'"),
        (("--labeled-data", "DATA", "--paired"), "expected --paired only with texts, found --paired with --labeled-data"),
        (("--labeled-data", "DATA", "--second-field", "hypo"), "expected the column 'hypo', found the columns premise, hypothesis, label"),
        (("a", "--second-field", "1"), "expected --second-field only with --labeled-data, found --second-field with other inputs"),
    ],
)
def test_mistakes(arguments: tuple[str, ...], expected: str, run: Path, data: Path, transom: Call) -> None:
    assert expected in transom("classify", run, *(data if each == "DATA" else each for each in arguments)).error


@pytest.mark.long
def test_whether_both_texts_share_a_word_is_learned_only_from_both(tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text(_shared_words(1500))
    accuracy = dict[str, float]()
    for name, fields in (("both", ["--second-field", "1"]), ("first", ["--label-field", "2"])):
        out = tmp_path / name
        command = ["train", "text-classes", "--labeled-data", str(tmp_path / "pairs.tsv"), "--no-header", *fields, *sets(*SMALL)]
        assert main([*command, "--out", str(out), "--json"]) == 0
        accuracy[name] = max(each["accuracy"] for each in RunFolder.open(out).metrics.read() if each["kind"] == "validation")
    assert accuracy["both"] > 95 and accuracy["first"] < 70
