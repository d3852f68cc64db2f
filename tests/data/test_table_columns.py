"""Headers and columns of users' files: recognized, asked about, or refused with the options that settle it."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from transom.config.data import InstructionFilesConfig, LabeledFilesConfig, PairFilesConfig, TextFilesConfig
from transom.data.labeled.instructions import read_instructions
from transom.data.labeled.labeled_texts import read_labeled_texts
from transom.data.pairs.pairs import Pairs, load_pairs
from transom.data.text.documents import read_documents
from transom.data.text.table_columns import ANSWER, LABEL, LANGUAGES, PROMPT, SOURCE, TARGET, TEXT, Column
from transom.errors import AmbiguousHeaderError, DataError, TransomError

TEXTS = [f"sentence number {i}, written by hand" for i in range(20)]
CLASSES = [("good", "bad")[i % 2] for i in range(20)]


def rows(*columns: Sequence[str]) -> list[Sequence[str]]:
    return list(zip(*columns, strict=True))


def write(path: Path, header: Sequence[str] | None, lines: Sequence[Sequence[str]]) -> Path:
    separator = "," if ".csv" in path.name else "\t"
    quoted = [[f'"{cell}"' if separator in cell else cell for cell in line] for line in ([header] if header else []) + list(lines)]
    content = "".join(separator.join(line) + "\n" for line in quoted).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def labeled(path: Path, **fields: Any) -> Pairs:
    return read_labeled_texts(LabeledFilesConfig(file=str(path), **fields), path.parent)


@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.tsv.gz", "a.csv.gz"])
@pytest.mark.parametrize(
    ("header", "order"),
    [
        (("text", "label"), (0, 1)),
        (("review", "sentiment"), (0, 1)),
        (("Label", "Sentence"), (1, 0)),
        (("id", "Review Text", "Stars"), (1, 2)),
        (("comment", "mood"), (0, 1)),
        (("wording", "class"), (0, 1)),
    ],
)
def test_known_names_make_the_first_line_a_header(tmp_path: Path, name: str, header: Sequence[str], order: tuple[int, int]) -> None:
    columns: list[Sequence[str]] = [list(map(str, range(20)))] * len(header)
    columns[order[0]], columns[order[1]] = TEXTS, CLASSES
    read = labeled(write(tmp_path / name, header, rows(*columns)))
    assert (read.source, read.target) == (TEXTS, CLASSES)
    assert read.line_number(0) == 2
    assert read.notes[0] == f"the first line is a header: text from {header[order[0]]!r}, label from {header[order[1]]!r}"


def test_a_file_without_names_has_no_header(tmp_path: Path) -> None:
    read = labeled(write(tmp_path / "a.tsv", None, rows(TEXTS, CLASSES)))
    assert (read.source, read.target, read.notes) == (TEXTS, CLASSES, ())


def test_classes_in_the_first_column_are_found(tmp_path: Path) -> None:
    read = labeled(write(tmp_path / "spam.tsv", None, rows(CLASSES, TEXTS)))
    assert (read.source, read.target) == (TEXTS, CLASSES)
    assert read.notes == ("no header: the classes are in the first column, the texts in the second",)


def test_a_suspicious_first_line_is_refused_and_both_options_settle_it(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", ("wording", "mood"), rows(TEXTS, CLASSES))
    with pytest.raises(AmbiguousHeaderError) as caught:
        labeled(path)
    assert str(caught.value) == (
        f"{path}:1: expected a header or a sample, found 'wording', 'mood', which may be either: no other line has the class 'mood';"
        " use --header or --no-header"
    )
    assert caught.value.question == f"{path} begins with 'wording', 'mood': no other line has the class 'mood'. Is this line a header?"
    assert len(labeled(path, header=False)) == 21
    assert labeled(path, header=True).target == CLASSES
    assert "the classes are taken from 'mood', whose values repeat" in labeled(path, header=True).notes


def test_one_line_per_class_is_not_suspicious(tmp_path: Path) -> None:
    names = [f"class {i}" for i in range(20)]
    assert len(labeled(write(tmp_path / "a.tsv", None, rows(TEXTS, names)))) == 20


def test_columns_that_several_readings_fit_are_listed_with_the_options(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", ("id", "wording", "label"), rows(list(map(str, range(20))), TEXTS, CLASSES))
    with pytest.raises(DataError) as caught:
        labeled(path, header=True)
    assert str(caught.value) == (
        f"{path}:1: expected a column 'text', found the columns id, wording, label; use --text-field id --label-field label"
        " (text_field and label_field in a recipe)"
    )
    assert labeled(path, text_field="wording").source == TEXTS
    assert labeled(path, text_field=1, header=True).source == TEXTS
    with pytest.raises(DataError, match=r"expected the column 'words', found the columns id, wording, label; did you mean 'wording'"):
        labeled(path, text_field="words")
    with pytest.raises(DataError, match=r"expected the column 'x', found the columns id, wording, label; use --text-field id"):
        labeled(path, text_field="x")
    with pytest.raises(DataError, match=r"expected the column 'LABEL', found the columns id, wording, label; did you mean 'label'"):
        labeled(path, text_field="wording", label_field="LABEL")
    with pytest.raises(DataError, match=r"expected a header with the column 'wording', found --no-header"):
        labeled(path, text_field="wording", header=False)


@pytest.mark.parametrize(
    ("header", "swapped"),
    [(("source", "target"), False), (("en", "de"), False), (("English", "Spanish"), False), (("translation", "original"), True)],
)
def test_pairs_have_headers_of_languages_too(tmp_path: Path, header: Sequence[str], swapped: bool) -> None:
    german = [f"Satz Nummer {i}, von Hand" for i in range(20)]
    path = write(tmp_path / "a.csv", header, rows(*((german, TEXTS) if swapped else (TEXTS, german))))
    read = load_pairs(PairFilesConfig(pairs=str(path)), tmp_path)
    assert (read.source, read.target) == (TEXTS, german)


def test_a_first_line_of_names_is_suspicious_among_sentences_and_not_in_a_dictionary(tmp_path: Path) -> None:
    german = [f"Satz Nummer {i}, von Hand" for i in range(20)]
    with pytest.raises(AmbiguousHeaderError, match="it looks like names, unlike other lines"):
        load_pairs(PairFilesConfig(pairs=str(write(tmp_path / "a.tsv", ("left", "right"), rows(TEXTS, german)))), tmp_path)
    words = [f"word{i}" for i in range(20)]
    assert len(load_pairs(PairFilesConfig(pairs=str(write(tmp_path / "b.tsv", None, rows(words, words)))), tmp_path)) == 20


def instructions(path: Path, **fields: Any) -> Pairs:
    return read_instructions(InstructionFilesConfig(file=str(path), **fields), path.parent)


ALPACA = [
    {"instruction": "Translate to Spanish.", "input": "hello", "output": "hola"},
    {"instruction": "Say hi.", "input": "", "output": "hi"},
    {"instruction": "Say no.", "output": "no"},
]


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.csv"])
def test_alpaca_is_recognized(tmp_path: Path, name: str) -> None:
    if name == "a.csv":
        write(tmp_path / name, ("instruction", "input", "output"), [[r["instruction"], r.get("input", ""), r["output"]] for r in ALPACA])
    else:
        (tmp_path / name).write_text(json.dumps(ALPACA, indent=1) if name == "a.json" else "".join(json.dumps(r) + "\n" for r in ALPACA))
    read = instructions(tmp_path / name)
    assert read.source == ["Translate to Spanish.\n\nhello", "Say hi.", "Say no."]
    assert read.target == ["hola", "hi", "no"]


@pytest.mark.parametrize(("prompt", "answer"), [("prompt", "completion"), ("question", "answer"), ("instruction", "response")])
def test_other_names_of_prompts_and_answers(tmp_path: Path, prompt: str, answer: str) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"id": 7, prompt: "Say hi.", answer: "hi"}) + "\n")
    read = instructions(tmp_path / "a.jsonl")
    assert (read.source, read.target) == (["Say hi."], ["hi"])


OPENAI = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "Who are you?"},
        {"role": "assistant", "content": "A model."},
    ]
}
SHAREGPT = {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello."}]}


def test_conversations_are_recognized(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(OPENAI) + "\n")
    read = instructions(tmp_path / "a.jsonl")
    assert read.source == ["Be brief.\n\nHi", "Be brief.\n\nUser: Hi\nAssistant: Hello.\n\nWho are you?"]
    assert (read.target, read.lines, read.notes) == (["Hello.", "A model."], [1, 1], ("conversations: 1; answers: 2",))
    (tmp_path / "b.json").write_text(json.dumps([SHAREGPT]))
    assert (instructions(tmp_path / "b.json").source, instructions(tmp_path / "b.json").target) == (["Hi"], ["Hello."])


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (
            {"messages": [{"role": "tool", "content": "x"}]},
            r'a\.jsonl:1: messages\[0\]: expected a message with a role .*found \{"role": "tool"',
        ),
        ({"messages": [{"role": "user", "content": None}]}, r"expected a message with a role .* and its text as content"),
        ({"messages": "Hi"}, r'messages\[0\]: expected a message with a role .*found "Hi"'),
        ({"messages": [{"role": "user", "content": "Hi"}]}, r"expected conversations with answers of the assistant, found none"),
    ],
)
def test_bad_conversations(tmp_path: Path, record: dict[str, Any], message: str) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(record) + "\n")
    with pytest.raises(DataError, match=message):
        instructions(tmp_path / "a.jsonl")


def test_parquet_is_read_like_json(tmp_path: Path) -> None:
    parquet.write_table(pyarrow.table({"review": TEXTS, "label": [i % 2 for i in range(20)]}), tmp_path / "a.parquet")
    read = labeled(tmp_path / "a.parquet")
    assert (read.source, read.target) == (TEXTS, [str(i % 2) for i in range(20)])
    parquet.write_table(pyarrow.Table.from_pylist([OPENAI]), tmp_path / "b.parquet")
    assert instructions(tmp_path / "b.parquet").target == ["Hello.", "A model."]
    parquet.write_table(pyarrow.table({"content": TEXTS}), tmp_path / "c.parquet")
    assert read_documents(TextFilesConfig(files="c.parquet"), tmp_path).texts == TEXTS
    (tmp_path / "d.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-40])
    with pytest.raises(DataError, match=r"d\.parquet: expected a Parquet file, found an error after record 0"):
        labeled(tmp_path / "d.parquet")
    with pytest.raises(DataError, match="no such file"):
        labeled(tmp_path / "e.parquet")


def test_text_files_say_what_was_skipped(tmp_path: Path) -> None:
    for name, text in {"a.txt": "Some text.\n", "b.txt": "", "c.txt": " \n", "d.jsonl": '{"content": "More."}\n'}.items():
        (tmp_path / name).write_text(text)
    read = read_documents(TextFilesConfig(files="."), tmp_path)
    assert read.texts == ["Some text.\n", "More."]
    assert read.notes == ("text from 'content'", "skipped 2 of 4 files, which have no text: b.txt, c.txt")


NAMES = st.sampled_from(sorted({alias for column in (TEXT, LABEL, SOURCE, TARGET, PROMPT, ANSWER) for alias in column.aliases} | LANGUAGES))


@given(st.lists(st.lists(NAMES | st.text("ab1 ,.", max_size=6), min_size=1, max_size=4), min_size=1, max_size=14), st.booleans())
def test_any_table_is_read_or_refused_in_one_line(tmp_path_factory: pytest.TempPathFactory, table: list[list[str]], gz: bool) -> None:
    path = tmp_path_factory.mktemp("any") / f"a.tsv{'.gz' if gz else ''}"
    write(path, None, table)
    for read in (labeled, instructions, lambda p: load_pairs(PairFilesConfig(pairs=str(p)), p.parent)):
        try:
            found = read(path)
        except TransomError as error:
            assert "\n" not in str(error)
        else:
            assert 0 < len(found) <= len(table) and all(1 <= found.line_number(i) <= len(table) for i in range(len(found)))


@pytest.mark.parametrize("column", [TEXT, LABEL, SOURCE, TARGET, PROMPT, ANSWER])
def test_names_are_given_as_they_are_compared(column: Column) -> None:
    assert column.aliases[0] == column.name and len(set(column.aliases)) == len(column.aliases)
    assert all(alias == alias.casefold() and " " not in alias for alias in (*column.aliases, *LANGUAGES))
