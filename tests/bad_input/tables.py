"""Tables of records (.csv, .tsv, .jsonl) that are damaged, endless, too deep, or without what is wanted."""

import gzip
import json
from collections.abc import Callable

from tests.bad_input.case import Case, Draw, Kinds, Refused

KINDS = Kinds()

TRAIN = ("--out", "out", "--set", "training.max_steps=1", "--set", "tokenizer.kind=char")
PAIRS = 'data.train={{ pairs = "{}" }}'
READERS: dict[str, tuple[tuple[str, str], Callable[[str], list[str]]]] = {
    "train a classifier": (("text", "label"), lambda name: ["train", "text-classes", "--labeled-data", name, *TRAIN]),
    "train on labels": (("text", "label"), lambda name: ["train", "text-classes", "--labeled-data", name, "--multi-label", *TRAIN]),
    "train, as validation": (
        ("text", "label"),
        lambda name: ["train", "text-classes", "--labeled-data", "GOOD/data/labelled.tsv", "--valid-labeled-data", name, *TRAIN],
    ),
    "classify": (("text", "label"), lambda name: ["classify", "GOOD/classification", "--labeled-data", name, "--json"]),
    "train on instructions": (("prompt", "answer"), lambda name: ["train", "instructions", "--instructions", name, *TRAIN]),
    "train a translator": (("source", "target"), lambda name: ["train", "translation", "--set", PAIRS.format(name), *TRAIN]),
    "train a tokenizer": (
        ("source", "target"),
        lambda name: ["tokenizer", "train", "translation", "--set", PAIRS.format(name), "--out", "tokenizer.json"],
    ),
}
"""The fields that are read, and the command line that reads them."""


def read_by(draw: Draw, suffix: str, about: str, rows: Callable[[tuple[str, str]], bytes], names: tuple[str, ...] = ()) -> Case:
    """Have a table read; ``rows`` makes its content for two fields."""
    reader = draw.choice(list(READERS))
    fields, command = READERS[reader]
    content, name = rows(fields), f"bad{suffix}"
    if draw.random() < 0.2:
        content, name = gzip.compress(content), f"{name}.gz"
    return Case(f"{reader}: {about}", command(name), lambda place: place.write(name, content), Refused((name, *names)))


def records(draw: Draw, fields: tuple[str, str], n: int = 40) -> list[dict[str, object]]:
    """Draw good records."""
    return [{fields[0]: draw.word(), fields[1]: draw.choice(["odd", "even"])} for _ in range(n)]


def json_lines(draw: Draw, bad: str) -> Callable[[tuple[str, str]], bytes]:
    """Put a bad line among good ones; FIRST and SECOND in it stand for the fields' names."""

    def rows(fields: tuple[str, str]) -> bytes:
        good = [json.dumps(record) for record in records(draw, fields)]
        good.insert(draw.randrange(len(good) + 1), bad.replace("FIRST", fields[0]).replace("SECOND", fields[1]))
        return ("\n".join(good) + "\n").encode(errors="surrogatepass")

    return rows


def separated(draw: Draw, separator: str, bad: str, header: bool) -> Callable[[tuple[str, str]], bytes]:
    """Put a bad line among good ones."""

    def rows(fields: tuple[str, str]) -> bytes:
        good = [f"{draw.word()}{separator}{draw.choice(['odd', 'even'])}" for _ in range(40)]
        good.insert(draw.randrange(len(good) + 1), bad)
        return ("\n".join([*([separator.join(fields)] if header else []), *good]) + "\n").encode()

    return rows


@KINDS.add
def a_json_line_that_is_cut(draw: Draw) -> Case:
    bad = '{"FIRST": "ab", "SECOND": "odd"}'
    return read_by(draw, ".jsonl", "a line that ends too early", json_lines(draw, bad[: draw.randrange(1, len(bad))]))


@KINDS.add
def a_json_line_with_something_behind_it(draw: Draw) -> Case:
    behind = draw.choice([",", "}", "]", " x", '{"FIRST": "ab", "SECOND": "odd"}', "// why"])
    return read_by(draw, ".jsonl", f"{behind!r} behind an object", json_lines(draw, '{"FIRST": "ab", "SECOND": "odd"}' + behind))


@KINDS.add
def a_json_line_that_is_no_object(draw: Draw) -> Case:
    bad = draw.choice(["3", '"text"', "null", "true", "[]", "[[]]", "{}", "NaN", "-0", '["a"]'])
    return read_by(draw, ".jsonl", f"{bad} in place of an object", json_lines(draw, bad))


@KINDS.add
def a_json_field_that_is_missing(draw: Draw) -> Case:
    bad = draw.choice(['{"FIRST": "ab"}', '{"SECOND": "odd"}', '{"first": "a", "SECOND ": "b"}', '{"": ""}'])
    return read_by(draw, ".jsonl", f"an object without a field: {bad}", json_lines(draw, bad))


@KINDS.add
def a_json_field_of_another_type(draw: Draw) -> Case:
    value = draw.choice(["null", "1.5", "[]", "{}", '["ab"]', '{"a": "b"}', "1e308", "1e999", "NaN", "-Infinity"])
    return read_by(draw, ".jsonl", f"{value} in place of a text", json_lines(draw, f'{{"FIRST": {value}, "SECOND": {value}}}'))


@KINDS.add
def a_json_number_of_5000_digits(draw: Draw) -> Case:
    digits = "9" * draw.choice([4_301, 5_000, 100_000])
    bad = draw.choice(
        ['{{"FIRST": "ab", "SECOND": {}}}', '{{"FIRST": {}, "SECOND": "odd"}}', "{}", '{{"FIRST": "a", "SECOND": "b", "c": {}}}']
    )
    return read_by(draw, ".jsonl", f"a number of {len(digits):,} digits", json_lines(draw, bad.format(digits)))


@KINDS.add
def json_that_is_too_deep(draw: Draw) -> Case:
    depth = draw.choice([1_001, 5_000, 100_000])
    bad = draw.choice([("[", "]"), ('{"a":', "}")])
    nested = bad[0] * depth + "1" + bad[1] * depth
    return read_by(draw, ".jsonl", f"{bad[0]} {depth:,} times", json_lines(draw, f'{{"FIRST": "a", "SECOND": {nested}}}'))


@KINDS.add
def json_900_deep_where_a_text_is_wanted(draw: Draw) -> Case:
    nested = "[" * 900 + "]" * 900
    return read_by(draw, ".jsonl", "a text nested 900 deep", json_lines(draw, f'{{"FIRST": {nested}, "SECOND": {nested}}}'))


@KINDS.add
def a_json_text_with_half_a_surrogate_pair(draw: Draw) -> Case:
    half = draw.choice(["\\ud800", "\\udfff", "a\\udc80b"])
    fields = draw.choice([(half, "odd"), ("ab", half)])
    return read_by(draw, ".jsonl", f"{half} in a text", json_lines(draw, f'{{"FIRST": "{fields[0]}", "SECOND": "{fields[1]}"}}'))


@KINDS.add
def a_json_text_with_nul(draw: Draw) -> Case:
    return read_by(draw, ".jsonl", "an escaped NUL", json_lines(draw, '{"FIRST": "a\\u0000b", "SECOND": "odd"}'))


@KINDS.add
def json_keys_to_stumble_over(draw: Draw) -> Case:
    keys = {draw.odd_text(): draw.odd_text() for _ in range(draw.randint(1, 3))}
    return read_by(draw, ".jsonl", "odd keys and no wanted field", json_lines(draw, json.dumps(keys)))


@KINDS.add
def a_json_value_to_stumble_over(draw: Draw) -> Case:
    value = json.dumps([draw.odd_text()])
    return read_by(draw, ".jsonl", "a list of an odd text", json_lines(draw, f'{{"FIRST": {value}, "SECOND": "odd"}}'))


@KINDS.add
def a_whole_json_document(draw: Draw) -> Case:
    indent = draw.choice([None, 1, 4])
    return read_by(draw, ".jsonl", "one JSON list of all records", lambda f: json.dumps(records(draw, f), indent=indent).encode())


@KINDS.add
def a_csv_quote_without_end(draw: Draw) -> Case:
    bad = draw.choice(['"ab,odd', 'ab,"odd', '"', '"ab""'])
    return read_by(draw, ".csv", f"{bad} without an end", separated(draw, ",", bad, header=True))


@KINDS.add
def a_csv_quote_in_the_middle(draw: Draw) -> Case:
    return read_by(draw, ".csv", "text behind a closing quote", separated(draw, ",", '"ab"c,odd', header=True))


@KINDS.add
def a_csv_first_line_of_another_format(draw: Draw) -> Case:
    header = draw.choice(["text;label", "text\tlabel", ",", "text", "\ufeff\ufefftext", "# text and label"])
    return read_by(draw, ".csv", f"a header {header!r}", lambda f: f"{header}\nab,odd\nba,even\n".encode())


@KINDS.add
def a_csv_header_to_stumble_over(draw: Draw) -> Case:
    name = draw.odd_text().translate(str.maketrans({"\n": " ", "\r": " ", '"': "", ",": ";"}))
    return read_by(draw, ".csv", "an odd column name", lambda f: f"{name}\nab,odd\n".encode())


@KINDS.add
def a_csv_row_that_is_too_short(draw: Draw) -> Case:
    return read_by(draw, ".csv", "a row of one column", separated(draw, ",", draw.word(), header=True))


@KINDS.add
def a_csv_field_that_is_too_large(draw: Draw) -> Case:
    return read_by(
        draw, ".csv", "a field of 200,000 characters", separated(draw, ",", "a" * draw.randint(131_073, 200_000) + ",odd", header=True)
    )


@KINDS.add
def a_header_and_no_record(draw: Draw) -> Case:
    return read_by(draw, ".csv", "a header alone", lambda fields: (",".join(fields) + draw.choice(["", "\n"])).encode())


@KINDS.add
def a_tsv_row_that_is_too_short(draw: Draw) -> Case:
    return read_by(draw, ".tsv", "a row of one column", separated(draw, "\t", draw.choice([draw.word(), "ab odd", "ab,odd"]), header=False))


@KINDS.add
def a_label_that_is_blank(draw: Draw) -> Case:
    bad, reader = draw.choice(["ab\t", "ab\t  ", "ab\t\tx"]), draw.choice(["train a classifier", "train, as validation"])
    content = separated(draw, "\t", bad, header=False)(("text", "label"))
    return Case(
        f"{reader}: no label in {bad!r}", READERS[reader][1]("bad.tsv"), lambda p: p.write("bad.tsv", content), Refused(("bad.tsv",))
    )


@KINDS.add
def an_array_of_what_is_no_label(draw: Draw) -> Case:
    bad = draw.choice(["[null]", "[[]]", '[["odd"]]', "[{}]", "[1.5]", '["a|b"]', '[""]', '["odd", null]', '["a\\u0000"]', "[NaN]"])
    content = json_lines(draw, f'{{"text": "ab", "label": {bad}}}')(("text", "label"))
    command = READERS["train on labels"][1]("bad.jsonl")
    return Case(f"train on labels: {bad}", command, lambda place: place.write("bad.jsonl", content), Refused(("bad.jsonl",)))


@KINDS.add
def a_class_alone(draw: Draw) -> Case:
    content = b"".join(b"%s\tsame\n" % draw.word().encode() for _ in range(draw.choice([2, 40])))
    return Case("train on a single class", READERS["train a classifier"][1]("bad.tsv"), lambda p: p.write("bad.tsv", content))


@KINDS.add
def a_class_that_training_has_not(draw: Draw) -> Case:
    label = draw.odd_text().replace("\n", " ").replace("\r", " ").strip()
    content = f"ab\teven\nba\t{label}\n".encode()
    command = READERS["train, as validation"][1]("bad.tsv")
    return Case(f"validate on an unknown class {label:.30}", command, lambda place: place.write("bad.tsv", content))


@KINDS.add
def an_answer_that_is_blank(draw: Draw) -> Case:
    bad = draw.choice([{"prompt": "ab", "answer": ""}, {"prompt": " ", "answer": "ab"}, {"prompt": "", "answer": ""}])
    content = json_lines(draw, json.dumps(bad))(("prompt", "answer"))
    command = READERS["train on instructions"][1]("bad.jsonl")
    return Case(f"train on {bad}", command, lambda place: place.write("bad.jsonl", content), Refused(("bad.jsonl",)))


@KINDS.add
def an_unknown_format(draw: Draw) -> Case:
    name = draw.choice(["bad.txt", "bad", "bad.xlsx", "bad.json", "bad.tsv.zip", "bad.gz", ".tsv", "bad.TSVX", "bad.parquet"])
    reader = draw.choice(list(READERS))
    return Case(f"{reader}: a table called {name}", READERS[reader][1](name), lambda place: place.write(name, "ab\todd\n"), may_write=())


@KINDS.add
def columns_that_are_not_there(draw: Draw) -> Case:
    field = draw.choice(["-1", "99", "1000000000000", "9" * 40, '"missing"', '""', "1.5", "true", '"\\u0000"', '"' + "x" * 9_000 + '"'])
    suffix = draw.choice([".tsv", ".csv", ".jsonl"])
    content = {".tsv": "ab\todd\n", ".csv": "text,label\nab,odd\n", ".jsonl": '{"text": "ab", "label": "odd"}\n'}[suffix] * 3
    command = ["train", "text-classes", *TRAIN, "--set", f'data.train={{ file = "bad{suffix}", label_field = {field} }}']
    return Case(f"label_field = {field:.40} of a {suffix}", command, lambda place: place.write(f"bad{suffix}", content))


@KINDS.add
def a_device_called_a_table(draw: Draw) -> Case:
    device = draw.choice(["/dev/zero", "/dev/urandom"])
    suffix, reader = draw.choice([".tsv", ".csv", ".jsonl"]), draw.choice([each for each in READERS if each != "classify"])
    name = f"link{suffix}"
    return Case(f"{reader}: {device} called {name}", READERS[reader][1](name), lambda place: (place.here / name).symlink_to(device))
