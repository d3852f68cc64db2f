"""Recipes that are no TOML, too deep, too large, endless, or hold what no field takes."""

import os
from collections.abc import Callable, Sequence

from tests.bad_input.case import Accepted, Case, Draw, Kinds, Place, Refused

KINDS = Kinds()

GOOD = """\
task = "translation"
[data]
generate = { kind = "copy", n_train = 100, n_valid = 10, n_test = 10 }
[tokenizer]
kind = "whitespace"
joint = true
vocab_size = 64
[model]
d_model = 16
n_heads = 2
n_encoder_layers = 1
n_decoder_layers = 1
d_ff = 16
[training]
max_steps = 1
batch_tokens = 256
"""

Reader = Callable[[str], list[str]]
READERS: tuple[Reader, ...] = (
    lambda name: ["train", name, "--out", "out"],
    lambda name: ["train", name, "--out", "out", "--resume", "--json"],
    lambda name: ["train", name, "--source", "GOOD/data/pairs.source", "--target", "GOOD/data/pairs.target", "--out", "out"],
    lambda name: ["recipes", "patterns", name],
    lambda name: ["recipes", "patterns", name, "--out", "patterns.svg"],
    lambda name: ["tokenizer", "train", name, "--out", "tokenizer.json"],
)
"""The command lines that read a recipe."""

TRAINING = READERS[:2]
"""Those that would train what it says."""

FIELDS = {
    "model": {"d_model": 16, "n_heads": 2, "d_ff": 16, "dropout": 0.1, "max_seq_len": 64, "n_encoder_layers": 1, "norm": '"layernorm"'},
    "training": {"max_steps": 1, "batch_tokens": 256, "learning_rate": 1e-3, "seed": 1, "validate_every": 5, "optimizer": '"adam"'},
    "tokenizer": {"vocab_size": 64, "joint": "true"},
    "decoding": {"beam_size": 2, "max_length": 9, "length_penalty": 0.5},
    "data": {"max_length_ratio": 9.0},
}
"""Fields and good values of a translator's recipe."""


def any_field(draw: Draw) -> tuple[str, str]:
    """Draw a field's table and name."""
    table = draw.choice(list(FIELDS))
    return table, draw.choice(list(FIELDS[table]))


def with_field(table: str, line: str) -> str:
    """Put a line into a table of the good recipe, in place of the field's own."""
    name = line.split("=")[0].strip()
    kept = [each for each in GOOD.split("\n") if each.split("=")[0].strip() != name]
    if f"[{table}]" not in kept:
        return "\n".join([*kept, f"[{table}]", line, ""])
    at = kept.index(f"[{table}]") + 1
    return "\n".join([*kept[:at], line, *kept[at:]])


def read(draw: Draw, about: str, content: str | bytes, names: tuple[str, ...] = (), readers: Sequence[Reader] = ()) -> Case:
    """Have a recipe read."""
    name = draw.choice(["bad.toml", "./bad", "folder/bad.toml"])
    if isinstance(content, str):
        content = content.encode(errors="surrogatepass")
    return Case(about, draw.choice(readers or READERS)(name), lambda place: place.write(name, content), Refused(("bad", *names)))


def spoiled(draw: Draw, line: str, about: str) -> Case:
    """Put a bad line somewhere between the good ones."""
    good = GOOD.split("\n")
    good.insert(draw.randrange(len(good)), line)
    return read(draw, about, "\n".join(good))


@KINDS.add
def no_toml(draw: Draw) -> Case:
    line = draw.choice(
        [
            "=",
            "a",
            "a =",
            "[",
            "[[a]",
            '"a',
            "a = 1 2",
            "a = {",
            "a = [1,",
            "]",
            "a = 'b",
            'a = """',
            "[a.]",
            "a..b = 1",
            "\t\x01",
            "{}",
            "%YAML 1.2",
        ]
    )
    return spoiled(draw, line, f"the line {line!r}")


@KINDS.add
def toml_that_is_cut(draw: Draw) -> Case:
    good = 'task = "translation"\nnotes = """' + GOOD
    return read(draw, "a text without an end", good[: draw.randrange(30, len(good))])


@KINDS.add
def a_table_twice(draw: Draw) -> Case:
    line = draw.choice(
        ["[model]", "[training]", "[[data]]", "task = 'x'\ntask = 'y'", "model = 1", "[data.generate]", "data.generate.kind = 1"]
    )
    return read(draw, f"{line!r} beside the same", GOOD + line + "\n")


@KINDS.add
def lists_too_deep(draw: Draw) -> Case:
    depth = draw.choice([51, 200, 900, 5_000])
    table, name = any_field(draw)
    return read(draw, f"{table}.{name} is a list nested {depth} deep", with_field(table, f"{name} = {'[' * depth}{']' * depth}"))


@KINDS.add
def tables_too_deep(draw: Draw) -> Case:
    depth = draw.choice([51, 200, 900])
    table, name = any_field(draw)
    return read(draw, f"inline tables {depth} deep", with_field(table, f"{name} = {'{a=' * depth}1{'}' * depth}"))


@KINDS.add
def a_dotted_key_of_many_parts(draw: Draw) -> Case:
    n = draw.choice([60, 900, 20_000])
    line = draw.choice([f"{'a.' * n}b = 1", f"[{'a.' * n}b]\n", f"model.{'a.' * n}b = 1", f"[[{'a.' * n}b]]"])
    return read(draw, f"a dotted key of {n:,} parts", line + "\n" + GOOD)


@KINDS.add
def a_number_of_5000_digits(draw: Draw) -> Case:
    digits = draw.choice([4_301, 5_000, 200_000])
    number = draw.choice(
        ["9" * digits, "-" + "9" * digits, "0x" + "f" * digits, "0." + "9" * digits + "e" + "9" * 400, "0b" + "1" * digits]
    )
    table, name = any_field(draw)
    return read(draw, f"{table}.{name} has {digits:,} digits", with_field(table, f"{name} = {number}"))


@KINDS.add
def a_huge_float(draw: Draw) -> Case:
    number = draw.choice(["1e308", "-1e308", "1.7976931348623157e308", "1e999", "-1e999", "inf", "-inf", "nan"])
    fields = [
        "model.d_model",
        "model.dropout",
        "model.max_seq_len",
        "training.max_steps",
        "training.batch_tokens",
        "training.label_smoothing",
    ]
    table, name = draw.choice([*fields, "tokenizer.vocab_size", "decoding.beam_size", "decoding.length_penalty"]).split(".")
    return read(draw, f"{table}.{name} = {number}", with_field(table, f"{name} = {number}"))


@KINDS.add
def a_float_that_overflows_later(draw: Draw) -> Case:
    """1e308 is a finite number; twice as much is not."""
    number = draw.choice(["1e308", "1.7976931348623157e308", "9e307"])
    table, name = draw.choice([("decoding", "max_length_ratio"), ("training", "r_drop")])
    more = "\n[model]\ndropout = 0.1" if name == "r_drop" else ""
    content = with_field(table, f"{name} = {number}").replace("\n[model]", more) if more else with_field(table, f"{name} = {number}")
    return read(draw, f"{table}.{name} = {number}", content, (), TRAINING)


@KINDS.add
def a_ratio_that_no_pair_has(draw: Draw) -> Case:
    """Nothing is dropped, and nothing is wrong with it: the largest number that a field takes."""
    content = with_field("data", "max_length_ratio = 3e38").replace("[training]", "[training]\nvalidate_bleu = 0")
    about, command = "data.max_length_ratio = 3e38", ["train", "bad.toml", "--out", "out"]
    return Case(about, command, lambda place: place.write("bad.toml", content), Accepted(("model in out",)), ("out",))


@KINDS.add
def a_learning_rate_that_is_no_number(draw: Draw) -> Case:
    number = draw.choice(["nan", "inf", "-inf", "-1e308", "0.0", "-0.0", "1e999"])
    return read(draw, f"a learning rate of {number}", with_field("training", f"learning_rate = {number}"))


@KINDS.add
def a_huge_whole_number(draw: Draw) -> Case:
    number = draw.choice([10**30, -(10**30), 2**63, -(2**63) - 1, 2**64, -1, 10**18])
    table, name = draw.choice(
        [("model", "d_model"), ("model", "n_heads"), ("model", "d_ff"), ("model", "n_encoder_layers")]
        + [("training", "seed")] * (number != 10**18)
    )
    return read(draw, f"{table}.{name} = {number}", with_field(table, f"{name} = {number}"), (), TRAINING)


@KINDS.add
def a_value_of_another_type(draw: Draw) -> Case:
    table, name = any_field(draw)
    value = draw.choice(
        ["[]", "[1, 2]", "{}", "{ a = 1 }", "1979-05-27T07:32:00Z", "07:32:00", "'text'", "''", "[[]]", "{ kind = [] }", "{ kind = 3 }"]
    )
    return read(draw, f"{table}.{name} = {value}", with_field(table, f"{name} = {value}"))


@KINDS.add
def a_table_of_another_type(draw: Draw) -> Case:
    value = draw.choice(["3", "'text'", "[]", "[[]]", "true", "1979-05-27", "nan", "[{}, {}]"])
    table = draw.choice(["model", "training", "data", "tokenizer", "decoding", "task"])
    kept, skip = [], False
    for line in GOOD.split("\n"):
        skip = line == f"[{table}]" or (skip and not line.startswith("["))
        kept += [] if skip or line.startswith(f"{table} =") else [line]
    return read(draw, f"{table} = {value}", "\n".join([f"{table} = {value}", *kept]), (), TRAINING)


@KINDS.add
def an_unknown_field(draw: Draw) -> Case:
    table, name = any_field(draw)
    odd = draw.choice(
        [name[::-1], name.upper(), f"{name} ", "kind", "__class__", "model_fields", "", draw.word(9_000), "\\u001b[31m", "a\\nb", "\\u2028"]
    )
    return read(draw, f"an unknown field {odd!r:.40} of {table}", with_field(table, f'"{odd}" = 1'))


@KINDS.add
def an_unknown_table(draw: Draw) -> Case:
    name = draw.choice(["modle", "Model", "'model '", '"\\u001b[2J"', '"' + "x" * 9_000 + '"', "a.b.c", "model.norm.norm.norm", "0"])
    return read(draw, f"an unknown table {name:.40}", GOOD + f"[{name}]\na = 1\n")


@KINDS.add
def an_unknown_word(draw: Draw) -> Case:
    name, table = draw.choice(
        [
            ("kind", "model"),
            ("norm", "model"),
            ("optimizer", "training"),
            ("kind", "tokenizer"),
            ("generate", "data"),
            ("preset", "model"),
            ("precision", "training"),
        ]
    )
    value = draw.choice(
        ["nothing", "", " ", "LAYERNORM", "../x", "\\u0000", "\\u001b[31mred", "x" * 10_000, "a\\nb", "__import__", "\\U0001F600"]
    )
    return read(draw, f"{table}.{name} = {value:.30}", with_field(table, f'{name} = "{value}"'))


@KINDS.add
def an_unknown_task(draw: Draw) -> Case:
    task = draw.choice(["'translate'", "''", "3", "[]", "{}", '"\\u001b]0;x\\u0007"', '"' + "t" * 10_000 + '"', "true", "1e308"])
    return read(draw, f"task = {task:.40}", GOOD.replace('"translation"', task))


@KINDS.add
def fields_that_do_not_fit_together(draw: Draw) -> Case:
    table, line = draw.choice(
        [
            ("model", "n_heads = 3"),
            ("tokenizer", "joint = false"),
            ("model", "n_kv_heads = 3"),
            ("training", "adapter = 'lora'"),
            ("model", "norm = 'batchnorm'\n[training]\nprocesses = 2"),
            ("data", "train = { source = 'a', target = 'b' }"),
            ("data", "valid = { source = 'a', target = 'b' }"),
            ("training", "best_checkpoint_metric = 'bleu'\nvalidate_bleu = 0"),
            ("training", "r_drop = 1.0\n[model]\ndropout = 0.0"),
            ("model", "position = 'rotary'\nd_head = 1"),
            ("training", "precision = 'fp16'"),
            ("training", "processes = 100000"),
            ("training", "init_from = 'missing'"),
        ]
    )
    first, _, rest = line.partition("\n[")
    content = with_field(table, first)
    if rest:
        second, field = rest.split("]\n")
        content = content.replace(f"[{second}]\n", f"[{second}]\n{field}\n")
    return Case(f"{line!r}", ["train", "bad.toml", "--out", "out"], lambda place: place.write("bad.toml", content))


@KINDS.add
def a_model_that_does_not_fit(draw: Draw) -> Case:
    line = draw.choice(
        [
            "d_model = 1000000",
            "d_ff = 100000000000",
            "n_encoder_layers = 1000\nd_model = 65536\nd_ff = 65536",
            "d_model = 4000000000",
            "n_encoder_layers = 1001",
        ]
    )
    kept = [each for each in GOOD.split("\n") if each.split(" =")[0] not in {part.split(" =")[0] for part in line.split("\n")}]
    at = kept.index("[model]") + 1
    content = "\n".join([*kept[:at], line, *kept[at:]])
    return Case(f"a model of {line!r}", ["train", "bad.toml", "--out", "out"], lambda place: place.write("bad.toml", content))


@KINDS.add
def no_utf8(draw: Draw) -> Case:
    content = draw.choice(
        [
            GOOD.encode() + b"# \xff\n",
            GOOD.encode("utf-16"),
            b"\xef\xbb" + GOOD.encode(),
            GOOD.encode() + b"a = '\xed\xa0\x80'\n",
            draw.randbytes(200) + b"\xff",
        ]
    )
    return read(draw, "a recipe that is not UTF-8", content)


@KINDS.add
def a_forbidden_character(draw: Draw) -> Case:
    character = draw.choice(["\0", "\x1b", "\x07", "\x7f", "\r", "\x0b"])
    line = draw.choice([f"# {character} x", f"a = '{character}x'", f"a{character} = 1", f'a = "{character}x"'])
    return spoiled(draw, line, f"a control character in {line!r}")


@KINDS.add
def a_bad_escape(draw: Draw) -> Case:
    escape = draw.choice(["\\ud800", "\\U00110000", "\\x", "\\q", "\\u12", "\\UFFFFFFFF"])
    return spoiled(draw, f'a = "{escape}"', f"the escape {escape}")


@KINDS.add
def too_large(draw: Draw) -> Case:
    n = draw.randint(2**20 + 1, 8 * 2**20)
    line = draw.choice(["# comment\n", "\n", "[training]\n", "a = 1\n", "aaaaaaaaaaaaa"])
    return read(draw, f"a recipe of {n:,} bytes, all {line!r}", GOOD.encode() + (line * (n // len(line) + 1)).encode())


@KINDS.add
def many_things_below_the_limit(draw: Draw) -> Case:
    """Less than 1 MiB, and as many keys, tables or texts as fit."""
    n, kind = draw.choice([10_000, 60_000]), draw.choice(["keys", "tables", "list", "dotted", "inline"])
    content = {
        "keys": "".join(f"k{i} = 1\n" for i in range(n)),
        "tables": "".join(f"[t{i}]\n" for i in range(n)),
        "list": f"k = [{'1,' * n}]\n",
        "dotted": "".join(f"a{i}.b.c = 1\n" for i in range(n // 2)),
        "inline": "k = [" + "{a=1}," * n + "]\n",
    }[kind]
    return read(draw, f"{n:,} {kind}", content)


@KINDS.add
def no_plain_file(draw: Draw) -> Case:
    what, reader = (
        draw.choice(["pipe", "/dev/zero", "/dev/urandom", "/dev/null", "folder", "circle", "missing", "long"]),
        draw.choice(READERS),
    )
    name = "x" * 300 + ".toml" if what == "long" else "bad.toml"

    def write(place: Place) -> None:
        path = place.here / name
        if what == "pipe":
            os.mkfifo(path)
        elif what == "folder":
            path.mkdir()
        elif what == "circle":
            path.symlink_to(name)
        elif what.startswith("/"):
            path.symlink_to(what)

    about = f"a recipe that is {what}"
    return Case(about, reader(what if what in ("/dev/zero", "/dev/urandom") and draw.random() < 0.5 else name), write)


@KINDS.add
def data_that_are_not_there(draw: Draw) -> Case:
    odd = draw.choice(["missing", "/dev/zero", "~nobody-at-all/x", "\\u0000", "x" * 5_000, "\\u001b[31m", "..", "", "a\\nb"])
    table = draw.choice(
        [
            f'train = {{ source = "{odd}", target = "{odd}" }}',
            f'train = {{ pairs = "{odd}.tsv" }}',
            f'root = "{odd}/x"\ntrain = {{ pairs = "a.tsv" }}',
        ]
    )
    content = GOOD.replace('generate = { kind = "copy", n_train = 100, n_valid = 10, n_test = 10 }', table)
    reader = draw.choice(TRAINING)
    return Case(f"data.{table:.60}", reader("bad.toml"), lambda place: place.write("bad.toml", content))
