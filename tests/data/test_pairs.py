"""Pairs from every format, misaligned files, and the split by hash."""

import gzip
import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transom.config.data import PairFilesConfig
from transom.data.pairs.pairs import Pairs, first_misaligned_line, load_pairs, split_validation
from transom.data.text.tabular import table_suffix
from transom.errors import ConfigError, DataError

BOTH = (["A dog.", 'Two\tmen, "well"'], ["Ein Hund.", "Zwei Männer"])


def write(folder: Path, name: str, text: str) -> str:
    content = text.encode()
    (folder / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return name


def load(folder: Path, name: str, text: str, **fields: str | int) -> Pairs:
    return load_pairs(PairFilesConfig(pairs=write(folder, name, text), **fields), folder)


def fault(folder: Path, name: str, text: str, **fields: str | int) -> str:
    with pytest.raises((DataError, ConfigError)) as caught:
        load(folder, name, text, **fields)
    message = str(caught.value)
    assert "\n" not in message
    return message.replace(f"{folder}/", "")


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_two_files(tmp_path: Path, suffix: str) -> None:
    names = [write(tmp_path, f"{side}{suffix}", "\n".join(lines) + "\n") for side, lines in zip("st", BOTH, strict=True)]
    pairs = load_pairs(PairFilesConfig(source=names[0], target=names[1]), tmp_path)
    assert (pairs.source, pairs.target) == BOTH
    assert pairs.name == f"{tmp_path}/s{suffix}, {tmp_path}/t{suffix}"
    assert (len(pairs), pairs.line_number(1)) == (2, 2)


def test_absolute_paths_ignore_the_root(tmp_path: Path) -> None:
    write(tmp_path, "a.tsv", "a\tb\n")
    assert load_pairs(PairFilesConfig(pairs=str(tmp_path / "a.tsv")), Path("/elsewhere")).source == ["a"]


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_one_file(tmp_path: Path, suffix: str) -> None:
    jsonl = "".join(json.dumps({"source": s, "target": t, "n": 1}) + "\n" for s, t in zip(*BOTH, strict=True))
    csv = 'target,source,n\nEin Hund.,A dog.,1\nZwei Männer,"Two\tmen, ""well""",2\n'
    assert (load(tmp_path, f"a.jsonl{suffix}", jsonl).source, load(tmp_path, f"a.jsonl{suffix}", jsonl).target) == BOTH
    assert (load(tmp_path, f"a.csv{suffix}", csv).source, load(tmp_path, f"a.csv{suffix}", csv).target) == BOTH
    tsv = load(tmp_path, f"a.tsv{suffix}", "a\tb\tc\n\nd\te\n")
    assert (tsv.source, tsv.target, tsv.lines) == (["a", "d"], ["b", "e"], [1, 3])
    assert tsv.notes == ("blank lines skipped: 1",)


def test_fields_by_name_or_number(tmp_path: Path) -> None:
    table = "id\ten\tde\n7\ta\tb\n"
    named = load(tmp_path, "a.tsv", table, source_field="de", target_field="en")
    assert (named.source, named.target, named.lines) == (["b"], ["a"], [2])
    mixed = load(tmp_path, "a.tsv", table, source_field=1, target_field="de")
    assert (mixed.source, mixed.target) == (["a"], ["b"])
    numbered = load(tmp_path, "a.csv", "x,a,b\n", source_field=2, target_field=1)
    assert (numbered.source, numbered.target) == (["b"], ["a"])
    rows = load(tmp_path, "a.jsonl", '["a", "b"]\n\n', source_field=1, target_field=0)
    assert (rows.source, rows.target) == (["b"], ["a"])


def test_quoted_line_ends_keep_the_line_numbers(tmp_path: Path) -> None:
    pairs = load(tmp_path, "a.csv", 'source,target\n"one\ntwo",eins\n\nthree,drei\n')
    assert pairs.source == ["one\ntwo", "three"]
    assert [pairs.line_number(i) for i in range(2)] == [2, 5]


@pytest.mark.parametrize(
    ("name", "text", "fields", "expected"),
    [
        ("a.tsv", "a\tb\nc\n", {}, "a.tsv:2: expected at least 2 columns separated by tabs, found 1"),
        ("a.tsv", "a\tb\n", {"source_field": "en"}, "a.tsv:1: expected the column 'en', found the columns a, b; use --source-field a"),
        ("a.tsv", "a\tb\n", {"source_field": -1}, "expected a column index of at least 0, found -1"),
        (
            "a.csv",
            "source,left,right\na,b,c\n",
            {"target_field": "target"},
            "expected the column 'target', found the columns source, left, right",
        ),
        ("a.csv", "source,target\n", {}, "a.csv: expected at least one sample, found only a header"),
        ("a.csv", "source,target\na,b\nc\n", {}, "a.csv:3: expected at least 2 columns separated by commas, found 1"),
        ("a.csv", 'source,target\na,b\n"c,d\ne,f\n', {}, "a.csv:3: expected a CSV record, found an error at line 4"),
        ("a.csv", 'source,target\na,"b"x\n', {}, "a.csv:2: expected a CSV record"),
        ("a.jsonl", '{"source": "a", "target": "b"}\n{"source": "a" "target"}\n', {}, "a.jsonl:2:16: expected one JSON object per line"),
        (
            "a.jsonl",
            '{"source": "a"}\n',
            {},
            "a.jsonl:1: expected a column 'target', found the columns source; use --source-field",
        ),
        ("a.jsonl", "{}\n", {}, "a.jsonl:1: expected a JSON object with fields, found {}"),
        ("a.jsonl", "3\n", {}, "a.jsonl:1: expected a JSON object with fields, found 3"),
        ("a.jsonl", '["a"]\n', {"source_field": 0, "target_field": 1}, "a.jsonl:1: expected the field 1, found a list of 1"),
        ("a.jsonl", '{"source": "a", "target": 3}\n', {}, "a.jsonl:1: expected text in the field 'target', found 3"),
        (
            "a.jsonl",
            '{"source": "a\\ud800", "target": "b"}\n',
            {},
            "a.jsonl:1: field 'source': expected text, found half a surrogate pair (U+D800)",
        ),
        ("a.jsonl", '{"source": "a", "target": "\\u0000"}\n', {}, "a.jsonl:1: field 'target': expected text, found a NUL"),
        ("a.jsonl", "[" * 100_000 + "\n", {}, "a.jsonl:1: expected one JSON object per line"),
        ("a.jsonl", '{"source": ' + "1" * 5000 + "}\n", {}, "a.jsonl:1: expected one JSON object per line"),
        ("a.jsonl", '{"source": "a", "target": "b", "p": NaN}\n', {}, "a.jsonl:1: expected one JSON object per line, found NaN"),
        (
            "a.jsonl",
            '{"source": "a", "target": -1e999}\n',
            {},
            "a.jsonl:1: expected one JSON object per line, found the number -1e999",
        ),
        ("a.jsonl", '{"source": ' + "[" * 900 + "]" * 900 + "}\n", {}, "found more than 50 nesting levels; correct or remove it"),
        ("a.txt", "a\tb\n", {}, "a.txt: expected a .tsv, .csv, .jsonl, .json or .parquet file (.gz too), found '.txt'"),
        ("a.gz", "a\tb\n", {}, "(.gz too), found 'no suffix'; give another"),
        ("a.jsonl", "\ud800".encode("utf-8", "surrogatepass").decode("latin1"), {}, "a.jsonl:1:1: expected one JSON object per line"),
    ],
)
def test_bad_records(tmp_path: Path, name: str, text: str, fields: dict[str, str | int], expected: str) -> None:
    assert expected in fault(tmp_path, name, text, **fields)


def sentences(n: int, seed: int) -> tuple[list[str], list[str]]:
    draw = random.Random(seed)
    lengths = [draw.randint(2, 30) for _ in range(n)]
    return ["x" * 5 * length for length in lengths], ["y" * (6 * length + draw.randint(0, 5)) for length in lengths]


@pytest.mark.parametrize("place", [1, 2, 300, 650, 999])
@pytest.mark.parametrize("surplus", [1, 3])
@pytest.mark.parametrize("longer", [0, 1])
def test_where_alignment_breaks(place: int, surplus: int, longer: int) -> None:
    sides = sentences(1000, seed=place)
    sides[longer][place - 1 : place - 1] = ["z" * n for n in (17, 200, 90)[:surplus]]
    assert abs(first_misaligned_line(*sides) - place) <= 3


@pytest.mark.parametrize("cut", [1, 400])
def test_a_file_that_ends_too_early(cut: int) -> None:
    source, target = sentences(1000, seed=cut)
    assert abs(first_misaligned_line(source, target[:-cut]) - (1001 - cut)) <= 3


@given(st.lists(st.text("ab ", max_size=9), min_size=1, max_size=9), st.lists(st.text("ab ", max_size=9), min_size=1, max_size=9))
def test_any_two_files_have_a_suspicious_line(source: list[str], target: list[str]) -> None:
    if len(source) != len(target):
        assert 1 <= first_misaligned_line(source, target) <= min(len(source), len(target)) + 1


def test_unequal_counts_are_told_with_the_place(tmp_path: Path) -> None:
    source, target = sentences(2000, seed=1)
    names = write(tmp_path, "a.en", "\n".join(source)), write(tmp_path, "a.de", "\n".join([*target[:1200], *target[1201:]]))
    with pytest.raises(DataError) as caught:
        load_pairs(PairFilesConfig(source=names[0], target=names[1]), tmp_path)
    message = str(caught.value).replace(f"{tmp_path}/", "")
    assert message.startswith(
        "a.en, a.de: expected aligned files of equal length, found 2,000 and 1,999 lines; judging by line lengths, the"
    )
    assert any(f"near line {line:,};" in message for line in range(1199, 1204))
    write(tmp_path, "a.de", "\n".join(target[:500]))
    with pytest.raises(DataError, match=r"the shorter file seems to be truncated after line 500;"):
        load_pairs(PairFilesConfig(source=names[0], target=names[1]), tmp_path)


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from("xyz")), min_size=2, max_size=60))
def test_split_keeps_all_and_never_shares_a_pair(drawn: list[tuple[str, str]]) -> None:
    pairs = Pairs([s for s, _ in drawn], [t for _, t in drawn], "drawn")
    if len(set(drawn)) == 1:
        with pytest.raises(DataError, match="expected at least two different pairs"):
            split_validation(pairs, 0.2)
        return
    train, valid = split_validation(pairs, 0.2)
    sides = [set(zip(side.source, side.target, strict=True)) for side in (train, valid)]
    assert sides[0] and sides[1] and not sides[0] & sides[1]
    back = sorted((side.line_number(i), side.source[i], side.target[i]) for side in (train, valid) for i in range(len(side)))
    assert back == [(line, s, t) for line, (s, t) in enumerate(drawn, 1)]


def test_split_is_stable_and_of_the_share() -> None:
    numbers = [str(i) for i in range(20_000)]
    train, valid = split_validation(Pairs(numbers, numbers, "n"))
    assert 150 < len(valid) < 250 and len(train) + len(valid) == 20_000
    again = split_validation(Pairs(numbers[::-1][:10_000], numbers[::-1][:10_000], "n"))[1]
    assert set(again.source) == set(valid.source) & set(numbers[10_000:])
    assert valid.source[:3] == ["93", "127", "246"]
    assert valid.name == f"{len(valid)} of 20000 pairs of n, held out"


def test_take_keeps_lines() -> None:
    pairs = Pairs(["a", "b", "c"], ["x", "y", "z"], "n", [1, 4, 9]).select([2, 0], "some")
    assert pairs == Pairs(["c", "a"], ["z", "x"], "some", [9, 1])


def test_a_missing_file_without_an_ending_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none: no such file or folder; check the path$"):
        table_suffix(tmp_path / "none")
