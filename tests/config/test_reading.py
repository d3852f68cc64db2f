"""What is too large, too deep or no regular file is refused before it is parsed, and nothing else is."""

import os
import random
import tomllib
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from transom.config.recipe import load_recipe
from transom.config.toml_input import check_toml, find_line, parse_override, parse_toml
from transom.errors import ConfigError
from transom.files.limits import MAX_DEPTH, MAX_DIGITS, MAX_RECIPE_BYTES, MAX_RECIPE_VALUES
from transom.files.regular_files import parse_json, resolve_path

DEEP, DIGITS, MANY = f"at most {MAX_DEPTH}", f"at most {MAX_DIGITS} digits", f"at most {MAX_RECIPE_VALUES:,} names"

BAD = {
    "lists": ("a = " + "[" * 900 + "]" * 900, DEEP),
    "unfinished lists": ("a = " + "[" * 100_000, DEEP),
    "inline tables": ("a = " + "{ a = " * 900 + "1" + " }" * 900, DEEP),
    "a table per line": ("".join(f"[{'.'.join('a' * n)}]\n" for n in range(1, 60)), DEEP),
    "a dotted name": (".".join("a" * 20_000) + " = 1", DEEP),
    "a quoted dotted name": (" . ".join(['"a"'] * 20_000) + " = 1", DEEP),
    "a dotted header": ("[" + ".".join("a" * 20_000) + "]", DEEP),
    "a dotted name in an inline table": ("a = { " + ".".join("a" * 20_000) + " = 1 }", DEEP),
    "lists behind five quotes": ('a = ["""x""""", ' + "[" * 900 + "]" * 901, DEEP),
    "lists behind a comment": ('a = [ # "\n' + "[" * 900 + "]" * 901, DEEP),
    "lists behind an escape": ('a = ["\\\\", ' + "[" * 900 + "]" * 901, DEEP),
    "lists behind a literal": ("a = ['\\', " + "[" * 900 + "]" * 901, DEEP),
    "a whole number": ("a = " + "9" * 5_000, DIGITS),
    "a hexadecimal number": ("a = 0x" + "f" * 5_000, DIGITS),
    "a fraction": ("a = 1." + "9" * 5_000, DIGITS),
    "a number in a list": ("a = [1, -" + "9" * 5_000 + "]", DIGITS),
    "many names": ("".join(f"a{n} = 1\n" for n in range(MAX_RECIPE_VALUES + 1)), MANY),
    "many elements": ("a = [" + "1," * (MAX_RECIPE_VALUES + 1) + "]", MANY),
    "size": ("#" * (MAX_RECIPE_BYTES + 1), "at most 1,048,576 bytes"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_would_take_the_parser_too_much_is_refused_first(name: str, tmp_path: Path) -> None:
    text, expected = BAD[name]
    (tmp_path / "my.toml").write_text(text)
    with pytest.raises(ConfigError, match=expected) as caught:
        load_recipe(tmp_path / "my.toml")
    assert str(caught.value).startswith(str(tmp_path / "my.toml"))


def test_a_dotted_name_takes_no_memory() -> None:
    text = ".".join("a" * 20_000) + " = 1"
    tracemalloc.start()
    try:
        with pytest.raises(ConfigError, match=DEEP):
            parse_toml(text, "my.toml")
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("a=" + "[" * 900, DEEP),
        (".".join("a" * 20_000) + "=1", "a name of at most 50 parts"),
        ('a"b=' + "9" * 5_000, DIGITS),
        ("a=" + "[1," * 30_000, MANY + "|" + DEEP),
        ("a=" + "x" * MAX_RECIPE_BYTES, "bytes"),
        ("data.root=\udcff", "expected UTF-8"),
    ],
)
def test_an_override_has_the_same_limits(override: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected) as caught:
        parse_override(override)
    assert len(str(caught.value)) < 300


def test_strings_and_comments_are_no_structure() -> None:
    brackets, digits = "[{" * 900, "9" * 5_000
    strings = [f'"{brackets}\\"{digits}"', f"'{brackets}'", f'"""\n{brackets}"\\"""{digits}""""', f"'''{digits}\n{brackets}''''"]
    text = "".join(f"{name} = {string} # {brackets}{digits}\n" for name, string in zip("abcd", strings, strict=True))
    found = parse_toml(text, "my.toml")
    assert found["a"] == f'{brackets}"{digits}' and found["c"].endswith('9"') and found["d"].endswith("{'")
    assert parse_override("data.root=it's [fine").value == "it's [fine"


def test_a_recipe_at_the_limits_is_read() -> None:
    assert parse_toml("a = " + "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1), "x")
    assert parse_toml("a = " + "9" * MAX_DIGITS, "x") == {"a": int("9" * MAX_DIGITS)}
    assert len(parse_toml("a = [" + "1," * (MAX_RECIPE_VALUES - 3) + "]", "x")["a"]) == MAX_RECIPE_VALUES - 3


def levels(value: Any) -> int:
    """Count how many tables and lists lie within each other."""
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if items is None else 1 + max(map(levels, items), default=0)


def soups() -> Iterator[str]:
    """Draw texts of TOML's marks that are often TOML."""
    draw = random.Random(1)
    values = ["1", "1.5", '"a]"', "'[{'", '"""x\n["""', "''''a''''", "[", "]", "[[", "]]", ", ", "{ a = ", "{ a.b = ", " }", "\\", "#[\n"]
    lines = ["[a.b]\n", "[[c]]\n", '[a."x.y"]\n', "d.e . f = 1\n", "# [[[ {\n", "\n", '"k" = ', "g = ", "h.i = ", "j = [", "k = {l = "]
    for _ in range(4_000):
        yield "".join(draw.choice(lines) + "".join(draw.choices(values, k=draw.randint(0, 4))) + "\n" for _ in range(draw.randint(1, 3)))
    for _ in range(2_000):
        depth, close = draw.randint(0, 6), ""
        text = draw.choice(["a", "a.b", "a.'c.d'.e"]) + " = "
        for _ in range(depth):
            opened = draw.choice(["[", "['''[''', ", '["""]""""", ', "{b = ", '{"c"."d" = ', "[ # ]\n"])
            text, close = text + opened, ("}" if opened.startswith("{") else "]") + close
        yield draw.choice(["", "[t]\n", "[[t.u]]\n"]) + text + "1" + close + "\n"


def test_depth_is_what_the_parser_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    n_parsed = 0
    for text in soups():
        try:
            found = levels(tomllib.loads(text))
        except tomllib.TOMLDecodeError:
            check_toml(text, "x")  # does not fail on anything
            continue
        n_parsed += found > 2
        monkeypatch.setattr("transom.config.toml_input.MAX_DEPTH", found)
        check_toml(text, "x")
        monkeypatch.setattr("transom.config.toml_input.MAX_DEPTH", found - 2)
        if found > 2:
            with pytest.raises(ConfigError, match="levels deep"):
                check_toml(text, "x")
        monkeypatch.undo()
    assert n_parsed > 1_500


def test_a_line_is_found_in_linear_time() -> None:
    for line in ("a." * 200_000, "[" + " " * 400_000, "[" + "a " * 200_000, ("a . " * 100_000), '"' * 400_000):
        assert find_line(f'x = """\n{line}\n"""\ny = 1', ("y",)) == 4


def test_a_recipe_that_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    (tmp_path / "link.toml").symlink_to("/dev/zero")
    for name in ("pipe.toml", "link.toml"):
        with pytest.raises(ConfigError, match="expected a file, found a device or a pipe"):
            load_recipe(tmp_path / name)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("decoding.max_length_ratio=1e308", "decoding.max_length_ratio: expected a number of at most 3.4e[+]38, found 1e[+]308"),
        ("training.r_drop=1e308", "training.r_drop: expected a number of at most"),
        ("training.max_minutes=1e308", "training.max_minutes: expected a number of at most"),
        ("training.learning_rate=1e308", "training.learning_rate: expected a number of at most"),
        ("training.max_steps=1e308", "training.max_steps: expected a whole number, found 1e[+]308"),
        (f"training.max_steps={10**38}", "training.max_steps: expected a whole number of at most 64 bits"),
        ("training.max_minutes=1e400", "training.max_minutes: expected a finite number"),
    ],
)
def test_numbers_that_no_computation_holds(override: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        load_recipe("copy", [override])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("9" * 5_000, "5,000 digits"),
        (f"[-{'9' * 41}]", "42 digits|41 digits"),
        ("1e400", "too large"),
        ("-1e999", "too large"),
        ("9" * 400 + ".5", "too large"),
        ("NaN", "NaN, which is not JSON"),
        ('{"a": -Infinity}', "-Infinity, which is not JSON"),
        ("[" * 51 + "]" * 51, "more than 50 nesting levels"),
        ('{"a":' * 900 + "1" + "}" * 900, "more than 50 nesting levels"),
        ("[" * 100_000, "more than 50 nesting levels"),
        (b"\xff", "utf-8"),
    ],
)
def test_json_that_python_takes_or_trips_over(text: str | bytes, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        parse_json(text)


def test_json_of_many_kinds_is_read() -> None:
    assert parse_json('{"NaN": ["Infinity", 1e-400, 1e300, ' + "9" * 40 + ', "' + "9" * 5_000 + '", true, null]}') == {
        "NaN": ["Infinity", 0.0, 1e300, int("9" * 40), "9" * 5_000, True, None]
    }
    assert parse_json("[" * 50 + "]" * 50) is not None


def test_links_that_lead_in_a_circle_are_told_and_others_followed(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "dangling").symlink_to("real/later")
    for circle in (tmp_path / "a", tmp_path / "b" / "below"):
        with pytest.raises(ConfigError, match="links that form a loop; remove the links"):
            resolve_path(circle)
    for name, real in (("link/x", "real/x"), ("dangling", "real/later"), ("none", "none"), ("real/../x", "x")):
        assert resolve_path(tmp_path / name) == (tmp_path / real).resolve()
