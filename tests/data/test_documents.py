"""Reading documents: files, folders, spans, splits and errors."""

import gzip
import json
from pathlib import Path

import pytest

from transom.config.data import StandardLibraryConfig, TextDataConfig, TextFilesConfig
from transom.data.text.documents import Documents, load_text, read_documents, read_standard_library, split_parts, split_validation
from transom.errors import DataError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "b").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / "a.txt").write_bytes(b"one\r\ntwo")
    (tmp_path / "b" / "c.txt.gz").write_bytes(gzip.compress("drei\n\n \nvier\nfünf\n".encode()))
    (tmp_path / "b" / "d.md").write_text("# five\n")
    (tmp_path / "b" / "blank.txt").write_text(" \n\n")
    (tmp_path / "lines.jsonl").write_text(json.dumps({"text": "six\nseven"}) + "\n\n" + json.dumps({"text": "eight"}) + "\n")
    (tmp_path / ".git" / "hidden.txt").write_text("hidden\n")
    return tmp_path


def read(folder: Path, **fields: object) -> Documents:
    return read_documents(TextFilesConfig.model_validate({"files": ".", **fields}), folder)


def test_a_folder_gives_its_files_in_order_blank_and_hidden_ones_left_out(folder: Path) -> None:
    found = read(folder)
    assert found.texts == ["one\ntwo\n", "drei\n\n \nvier\nfünf\n", "# five\n", "six\nseven", "eight"]
    assert [place.removeprefix(str(folder) + "/") for place in found.origins] == [
        "a.txt",
        "b/c.txt.gz",
        "b/d.md",
        "lines.jsonl:1",
        "lines.jsonl:3",
    ]
    assert found.n_bytes == sum(len(text.encode()) for text in found.texts)


def test_suffixes_choose_in_folders_only(folder: Path) -> None:
    assert read(folder, suffixes=[".md"]).texts == ["# five\n"]
    assert read(folder, suffixes=[".txt"]).texts == ["one\ntwo\n", "drei\n\n \nvier\nfünf\n"]
    assert read(folder, files=["a.txt", "b"], suffixes=[".md"]).texts == ["one\ntwo\n", "# five\n"]


def test_a_document_may_be_a_paragraph_or_a_line(folder: Path) -> None:
    paragraphs = read(folder, files="b/c.txt.gz", document="paragraph")
    assert paragraphs.texts == ["drei\n", "vier\nfünf\n"]
    assert [place[-2:] for place in paragraphs.origins] == [":1", ":4"]
    lines = read(folder, files="b/c.txt.gz", document="line")
    assert lines.texts == ["drei", "vier", "fünf"]
    assert [place[-2:] for place in lines.origins] == [":1", ":4", ":5"]


def test_parts_of_a_text_are_the_whole_text() -> None:
    text = "\n\n# one\n two\n \t\n\nthree\rfour\n\nfive\n\n"
    assert split_parts(text, "paragraph") == ["\n\n", "# one\n two\n \t\n\n", "three\rfour\n\n", "five\n\n"]
    assert split_parts(text, "line") == ["\n", "\n", "# one\n", " two\n", " \t\n", "\n", "three\rfour\n", "\n", "five\n", "\n"]
    assert split_parts("one", "line") == split_parts("one", "paragraph") == ["one"]


def test_spans_share_no_character_and_lose_none(folder: Path) -> None:
    whole = "".join(read(folder).texts)
    for cut in (0.05, 0.3, 0.5, 0.77):
        first, last = read(folder, end=cut), read(folder, start=cut)
        assert "".join(first.texts) == whole[: int(cut * len(whole))]
        assert "".join(first.texts + last.texts) == whole
        assert first.name.startswith("0 to")


def test_one_document_is_split_at_its_end_several_by_hash() -> None:
    one = Documents(["abcdefghij" * 10], ["x"], "x")
    train, valid = split_validation(one)
    assert train.texts[0] + valid.texts[0] == one.texts[0] and len(valid.texts[0]) == 5
    many = Documents([f"text {i}" for i in range(400)], [str(i) for i in range(400)], "many")
    train, valid = split_validation(many)
    assert sorted(train.texts + valid.texts) == sorted(many.texts) and 8 <= len(valid) <= 36
    shuffled = split_validation(many.select(list(range(399, -1, -1)), "many"))
    assert set(shuffled[1].texts) == set(valid.texts)
    twice = split_validation(Documents(many.texts * 2, many.origins * 2, "twice"))
    assert set(twice[0].texts).isdisjoint(twice[1].texts)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"files": "nothing.txt"}, ("nothing.txt: no such file",)),
        ({"suffixes": [".rs"]}, ("expected a file that ends with .rs, found none in this folder",)),
        ({"files": "b/blank.txt"}, ("expected some text, found none",)),
        (
            {"files": "lines.jsonl", "text_field": "body"},
            ("lines.jsonl:1: expected the column 'body', found the columns text", "use --text-field text (text_field in a recipe)"),
        ),
    ],
)
def test_bad_files_are_named(folder: Path, fields: dict[str, object], words: tuple[str, ...]) -> None:
    with pytest.raises(DataError) as error:
        read(folder, **fields)
    assert all(word in str(error.value) for word in words) and "\n" not in str(error.value)


def test_excerpts_are_different_and_start_with_a_line_or_a_word() -> None:
    verses = "to be or not\nto be that is\nthe question\nwhether it is\nnobler in the mind\n"
    one = Documents([verses], ["a.txt"], "a.txt")
    assert one.excerpts(3, 5) == ["to be", "the q", "noble"]
    many = Documents(["first words", "second words", "first words"], ["a", "b", "c"], "a folder")
    assert many.excerpts(1, 6) == ["first "] and many.excerpts(2, 6) == ["first ", "second"]
    assert many.excerpts(4, 6) == ["first ", "second", "words"] and many.excerpts(0, 6) == []


def test_too_little_text_to_split_is_refused() -> None:
    for texts in (["x"], ["same", "same"]):
        with pytest.raises(DataError, match=r"found (too little|fewer)"):
            split_validation(Documents(texts, texts, "few"))


def test_the_standard_library_is_read_without_its_tests() -> None:
    found = read_standard_library(StandardLibraryConfig(n_files=40))
    assert len(found) == 40 and found.origins == sorted(found.origins)
    assert not any("test" in place.split("/")[:-1] for place in found.origins)
    fewer = read_standard_library(StandardLibraryConfig(n_files=20))
    assert set(fewer.origins) < set(found.origins), "fewer files are some of the same"
    splits = load_text(TextDataConfig(generate=StandardLibraryConfig(n_files=40)), Path())
    assert len(splits.train) + len(splits.valid) == 40 and splits.test is None
