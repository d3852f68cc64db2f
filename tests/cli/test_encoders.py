"""The commands of encoders: train on one's own labelled texts or plain text, classify, fill, embed, and what is said of mistakes."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.cli.conftest import Call, Trained, sets
from tests.cli.test_language import TINY as TINY_TEXT
from tests.inspection.evaluate_explanation import holds, text_lines
from tests.kernels.test_native_decoder import needs_library
from transom.cli.main import main
from transom.planning import freed_memory
from transom.tasks.load import load_embedder

TINY = tuple(override for override in TINY_TEXT if not override.startswith("decoding."))


@pytest.fixture(scope="session")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write texts with their classes."""
    path = tmp_path_factory.mktemp("labelled") / "animals.tsv"
    path.write_text("".join(f"a {word} of {i}\t{label}\n" for i in range(30) for word, label in (("cat", "pet"), ("wolf", "wild"))))
    return path


@pytest.fixture(scope="session")
def classifying(labelled: Path) -> Path:
    """Train a tiny classifier once."""
    out = labelled.parent / "classifier"
    assert main(["train", "text-classes", "--labeled-data", str(labelled), *sets(*TINY), "--out", str(out), "--json"]) == 0
    return out


@pytest.fixture(scope="session")
def filling(labelled: Path) -> Path:
    """Train a tiny masked language model once."""
    out, text = labelled.parent / "masked", labelled.parent / "text"
    text.mkdir()
    for i in range(25):
        (text / f"{i}.txt").write_text(f"the sun of {i} is a sun\n")
    assert main(["train", "text-masked", "--text", str(text), *sets(*TINY), "--out", str(out), "--json"]) == 0
    return out


def test_freed_memory_is_kept_while_texts_are_answered(
    transom: Call, classifying: Path, filling: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pages of every large tensor would else be cleared again: with 6 layers of width 512, texts took an eighth longer."""
    calls = list[str]()
    monkeypatch.setattr(freed_memory, "keep_freed_memory", lambda: calls.append("keep") or True)
    monkeypatch.setattr(freed_memory, "trim_malloc", lambda: calls.append("trim"))
    assert transom("classify", classifying, "a wolf").code == 0 and calls == ["keep", "trim"]
    assert transom("embed", filling, "a sun", "a cat").code == 0 and calls == ["keep", "trim"] * 2
    texts = tmp_path / "texts.txt"
    texts.write_text("a dog\n")
    assert transom("embed", filling, "--nearest", texts, "a sun").code == 0 and calls == ["keep", "trim"] * 4
    assert transom("embed", filling, "--output", tmp_path / "vectors.safetensors", "a sun").code == 0 and calls == ["keep", "trim"] * 5


def test_the_calculation_of_an_encoder_is_printed(transom: Call, classifying: Path, filling: Path) -> None:
    for run, expected in ((classifying, "p(wild) = "), (filling, "Transform of token ")):
        outcome = transom("explain", run, "a wolf of 3")
        lines = text_lines(outcome.out)
        assert outcome.code == 0 and len(lines) > 50 and all(map(holds, lines))
        assert expected in outcome.out


def test_pages_say_what_the_run_is(classifying: Path, filling: Path) -> None:
    card, page = (classifying / "README.md").read_text(), (classifying / "report.html").read_text()
    assert "A classification model: an encoder-only Transformer" in card and "transom classify" in card and "texts per second" in card
    assert "Validation accuracy" in page and "Predictions" in page and "Translations" not in page and "perplexity" not in page
    card, page = (filling / "README.md").read_text(), (filling / "report.html").read_text()
    assert "transom fill" in card and "masked tokens per second" in card and "Masked tokens" in page and "[MASK]" in page


@needs_library
@pytest.mark.kernels
def test_8_bits_change_answers_little(transom: Call, classifying: Path, filling: Path) -> None:
    exact, eight = (transom("classify", classifying, "a wolf", "--precision", each).out.split() for each in ("fp32", "int8"))
    assert exact[0] == eight[0] and 0 < abs(float(exact[1]) - float(eight[1])) < 0.05
    outputs = [transom("fill", filling, "the [MASK]", "--precision", each, "--json").json for each in ("fp32", "int8")]
    assert outputs[0] != outputs[1]


def test_classify_a_text_a_file_and_labelled_texts(transom: Call, classifying: Path, labelled: Path, tmp_path: Path) -> None:
    label, p = transom("classify", classifying, "a wolf", "--precision", "fp32").out.split()
    assert label in ("pet", "wild") and 0.5 <= float(p) <= 1
    (tmp_path / "texts").write_text("a wolf\n\n" + "a cat " * 30 + "\n")
    from_file = transom("classify", classifying, "--input", tmp_path / "texts", "--precision", "fp32")
    assert from_file.code == 0 and len(from_file.out.splitlines()) == 3 and from_file.out.startswith(f"{label}\t{p}")
    assert "1 of 3 texts exceed the context window of 15 tokens: truncated" in from_file.err
    records = transom("classify", classifying, "--input", tmp_path / "texts", "--too-long", "window", "--json").json
    assert [record["windows"] for record in records][:2] == [1, 1] and records[2]["windows"] > 1 and records[2]["n_dropped_tokens"] == 0
    scored = transom("classify", classifying, "--labeled-data", labelled)
    assert scored.out.splitlines()[-1].startswith("accuracy ") and scored.out.splitlines()[-1].endswith("% of 60 texts")
    assert transom("classify", classifying, "--labeled-data", labelled, "--json").json["n"] == 60
    ledger = [json.loads(line) for line in (classifying / "ledger.jsonl").read_text().splitlines()]
    assert any(str(labelled) in json.dumps(entry) for entry in ledger)


def test_fill_names_words(transom: Call, filling: Path, tmp_path: Path) -> None:
    ((gap,),) = [record["masks"] for record in transom("fill", filling, "the [MASK] of 3", "--top-k", "4", "--json").json]
    assert len(gap) == 4 and all(0 <= guess["p"] <= 1 for guess in gap)
    told = transom("fill", filling, "the [MASK] of [MASK]", "--top-k", "3")
    assert told.code == 0 and len(told.out.splitlines()) == 2 and told.out.count("%") == 6
    (tmp_path / "texts").write_text("a [MASK]\nno gap\n")
    assert "expected [MASK] in the text" in transom("fill", filling, "--input", tmp_path / "texts").error


def test_embed_compares_and_writes(transom: Call, classifying: Path, filling: Path, tmp_path: Path) -> None:
    for run in (classifying, filling):
        told = transom("embed", run, "a cat", "a wolf", "--precision", "fp32")
        rows = [line.split() for line in told.out.splitlines()]
        assert rows[0][0] == rows[1][1] == "1.000" and rows[0][1] == rows[1][0] and rows[0][2:] == ["a", "cat"]
    assert load_embedder(filling, "fp32").encoder_backend is not None, "it reads as fast as what the run is for"
    (tmp_path / "texts").write_text("a cat\na wolf\n\n")
    written = transom("embed", filling, "--input", tmp_path / "texts", "--output", tmp_path / "v.safetensors")
    assert written.code == 0 and load_file(tmp_path / "v.safetensors")["embeddings"].shape == (3, 16)
    lines = transom("embed", filling, "--input", tmp_path / "texts", "--json").out.splitlines()
    assert [json.loads(line)["text"] for line in lines] == ["a cat", "a wolf", ""] and len(json.loads(lines[0])["embedding"]) == 16


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["classify", "RUN", "a", "--labeled-data", "b"], "expected TEXT_OR_FILE, --input or --labeled-data, found several"),
        (["classify", "RUN", "a", "--input", "b"], "expected TEXT_OR_FILE or --input, found both; remove one"),
        (["classify", "RUN", "--labeled-data", "missing.tsv"], "missing.tsv"),
        (["classify", "FILL", "a text"], "expected a run that transom classify can use, found one for transom fill"),
        (["evaluate", "RUN"], "found one for transom classify; use transom classify RUN --labeled-data PATH"),
        (["evaluate", "FILL"], "found one for transom fill; use transom status FILL, which prints its validation metrics"),
        (["fill", "RUN", "a [MASK]"], "expected a run that transom fill can use, found one for transom classify"),
        (["fill", "FILL", "a", "--input", "b"], "expected TEXT or --input, found both"),
        (["fill", "FILL", "[MASK] " + "sun " * 40 + "[MASK]"], "place the masks closer together"),
        (
            ["embed", "RUN", "--input", "texts"],
            "expected --output FILE, --nearest FILE or --json, found none of them; give one of them to embed the lines of a file or pipe",
        ),
        (["embed", "RUN", "a", "--input", "b", "--json"], "expected TEXT or --input, found both"),
        (["embed", "RUN", "a", "--nearest", "b", "--output", "c"], "expected --nearest or --output, found both"),
        (["generate", "RUN", "a"], "expected a run that transom generate can use, found one for transom classify"),
        (["train", "text-classes", "--labeled-data", "missing.tsv", "--out", "OUT"], "missing.tsv"),
        (["train", "text-classes", "--out", "OUT"], "name your own files with --labeled-data"),
        (["train", "text-classes", "--valid-labeled-data", "a.tsv", "--out", "OUT"], "--valid-labeled-data requires --labeled-data"),
        (["train", "text-classes", "--labeled-data", "a.tsv", "--text", "b", "--out", "OUT"], "expected data files of one kind"),
        (["train", "text-masked", "--labeled-data", "a.tsv", "--out", "OUT"], "trains on --text, found --labeled-data"),
    ],
)
def test_mistakes(arguments: list[str], expected: str, transom: Call, classifying: Path, filling: Path, tmp_path: Path) -> None:
    places = {"RUN": str(classifying), "FILL": str(filling), "OUT": str(tmp_path / "out")}
    error = transom(*(places.get(argument, argument) for argument in arguments)).error
    assert expected.replace(" RUN", f" {classifying}").replace(" FILL", f" {filling}") in error


def test_vectors_need_an_encoder(transom: Call, trained: Trained) -> None:
    assert "expected a run of an encoder, found one for transom translate" in transom("embed", trained.folder, "a").error


def test_own_files_take_the_place_of_all_that_the_recipe_names(transom: Call, labelled: Path, tmp_path: Path) -> None:
    made = transom(
        "train", "languages", "--labeled-data", labelled, *sets(*TINY, "tokenizer.kind=char"), "--out", tmp_path / "out", "--json"
    )
    assert made.code == 0
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["model"]["classes"] == ["pet", "wild"]


def test_the_tokenizer_of_labelled_texts(transom: Call, labelled: Path, tmp_path: Path) -> None:
    sizes = ["--set", "tokenizer.vocab_size=270", "--set", f"data.train.file={labelled}"]
    made = transom("tokenizer", "train", "text-classes", "--out", tmp_path / "t.json", *sizes, "--json")
    assert made.code == 0 and (tmp_path / "t.json").exists()


def test_vectors_learned_from_pairs(transom: Call, tmp_path: Path) -> None:
    for name, words in (("left", ("cat", "dog")), ("right", ("gato", "perro"))):
        (tmp_path / name).write_text("".join(f"{i} {word}\n" for i in range(30) for word in words))
    files = ["--source", tmp_path / "left", "--target", tmp_path / "right"]
    assert transom("train", "text-pairs", *files, *sets(*TINY), "--out", tmp_path / "run", "--json").code == 0
    told = transom("embed", tmp_path / "run", "1 cat", "1 gato", "--precision", "fp32")
    explained = transom("explain", tmp_path / "run", "1 cat")
    assert "The text is paired with itself." in explained.out and all(map(holds, text_lines(explained.out)))
    assert transom("trace", tmp_path / "run", "1 cat", "--names", "pooled").code == 0
    assert told.code == 0 and told.out.startswith(" 1.000")
    card, page = (tmp_path / "run" / "README.md").read_text(), (tmp_path / "run" / "report.html").read_text()
    assert "transom embed" in card and "pairs per second" in card and "Predictions" in page
    assert "expected a run that transom classify can use, found one for transom embed" in transom("classify", tmp_path / "run", "a").error
    assert f"found one for transom embed; use transom status {tmp_path / 'run'}, which" in transom("evaluate", tmp_path / "run").error
    refused = transom("train", "text-pairs", *files, *sets("tokenizer.joint=false"), "--out", tmp_path / "other")
    assert "one encoder reads both sides" in refused.error
