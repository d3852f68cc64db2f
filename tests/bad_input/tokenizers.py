"""Tokenizers of runs that are damaged, too large, or cannot have come from training."""

import os
from collections.abc import Callable
from typing import Any

from tests.bad_input.case import Case, Draw, Kinds, Place, Refused
from tests.bad_input.damage import edit_json
from tests.bad_input.run_folders import ASKED, OF_TEXT

KINDS = Kinds()


def in_tokenizer(draw: Draw, about: str, change: Callable[[Any], object], runs: tuple[str, ...] = OF_TEXT) -> Case:
    """Alter tokenizer.json, and look at it or ask the run."""
    run = draw.choice(runs)
    command = draw.choice([["tokenizer", "show", "run"], ["tokenizer", "show", "run/tokenizer.json", "ab"], *ASKED[run]])
    about = f"{' '.join(command[:2])} with a run of {run}: {about}"
    return Case(about, command, lambda place: edit_json(place.copy(run) / "tokenizer.json", change), Refused(("tokenizer.json",)))


@KINDS.add
def a_tokenizer_that_is_no_json(draw: Draw) -> Case:
    content = draw.choice(
        [
            b"",
            b"{",
            b"[]",
            b"3",
            b"\xff",
            b"[" * 100_000,
            b'{"format_version": ' + b"1" * 5_000 + b"}",
            b'{"a": "\\ud800"}',
            b'{"format_version": 1, "source": []}',
            b"\0" * 9_000,
        ]
    )
    run = draw.choice(OF_TEXT)
    command = draw.choice([["tokenizer", "show", "run"], *ASKED[run]])
    return Case(
        f"{command[0]} with a run of {run}: tokenizer.json is {content[:20]!r}",
        command,
        lambda place: (place.copy(run) / "tokenizer.json").write_bytes(content),
        Refused(("tokenizer.json",)),
    )


@KINDS.add
def a_tokenizer_that_is_cut(draw: Draw) -> Case:
    run = draw.choice(OF_TEXT)
    command = draw.choice([["tokenizer", "show", "run"], *ASKED[run]])

    def prepare(place: Place) -> None:
        path = place.copy(run) / "tokenizer.json"
        path.write_bytes(draw.cut(path.read_bytes()[:-2]))

    return Case(f"{command[0]} with a run of {run}: tokenizer.json is cut", command, prepare, Refused(("tokenizer.json",)))


@KINDS.add
def a_tokenizer_of_another_version_or_kind(draw: Draw) -> Case:
    change = draw.choice(
        [
            {"format_version": 2},
            {"format_version": True},
            {"format_version": "x" * 9_000},
            {"source": 3},
            {"source": {"kind": "x" * 9_000}},
            {"source": {"kind": [], "lowercase": True}},
            {"target": 3},
            {"source": None},
            {"source": {"kind": "bpe", "lowercase": 1}},
        ]
    )
    return in_tokenizer(draw, f"{change!r:.40}", lambda document: document.update(change))


@KINDS.add
def units_that_are_none(draw: Draw) -> Case:
    odd = draw.choice([["a", "a"], ["ab"], [""], [3], [None], "abc", None, {"a": 1}, [["a"]], ["a" * 100_000]])
    return in_tokenizer(
        draw,
        f"units are {odd!r:.30}",
        lambda document: document["source"].update(units=odd),
        ("translation", "classification", "instruction"),
    )


@KINDS.add
def merges_that_are_none(draw: Draw) -> Case:
    odd = draw.choice(
        [[["zz", "y"]], [["a"]], [["a", "b", "c"]], ["ab"], "ab", None, [[1, 2]], [["\x80", "a"]], [["", "a"]], [["[EOS]", "a"]]]
    )
    return in_tokenizer(draw, f"merges are {odd!r:.30}", lambda document: document["source"].update(merges=odd), ("language", "embedding"))


@KINDS.add
def merges_of_merges(draw: Draw) -> Case:
    """Each merge joins the last symbol with itself: the n-th symbol has 2^n characters."""
    n, letter = draw.choice([20, 24, 27, 31, 40]), draw.choice("abz ")
    merges, symbol = [], letter

    for _ in range(min(n, 18)):
        merges.append([symbol, symbol])
        symbol += symbol
    # From here on the file itself would grow, so many merges of the longest with each other are used.
    merges += [[symbol, symbol]] * (n > 18)
    times = 1 if n <= 20 else 2_000 if n <= 27 else 6_000
    longest = symbol + symbol if n > 18 else symbol
    merges += [[longest[: len(longest) // 2], letter]] * (times > 1)
    return in_tokenizer(
        draw,
        f"merges of merges, {len(symbol):,} characters",
        lambda document: document["source"].update(merges=merges),
        ("language", "embedding"),
    )


@KINDS.add
def merges_that_repeat(draw: Draw) -> Case:
    """The same merge again and again, or each symbol a letter longer than the last."""
    n = draw.choice([3_000, 8_000])
    merges = draw.choice([[["a", "b"]] * (n * 20), [["a" * i, "a"] for i in range(1, n)]])
    return in_tokenizer(
        draw,
        f"{len(merges):,} merges that repeat or grow",
        lambda document: document["source"].update(merges=merges),
        ("language", "embedding"),
    )


@KINDS.add
def tags_that_are_none(draw: Draw) -> Case:
    odd = draw.choice([["a", "a"], [""], ["a b"], [3], "de", None, ["x" * 33], ["\x1b[31m"], ["de"] * 9, [["de"]]])
    return in_tokenizer(draw, f"tags are {odd!r:.30}", lambda document: document["source"].update(tags=odd))


@KINDS.add
def other_numbers_of_symbols(draw: Draw) -> Case:
    run = draw.choice(["translation", "classification", "instruction"])
    n = draw.choice([-1, 1, 5_000])

    def change(document: Any) -> None:
        units = document["source"]["units"]
        document["source"]["units"] = units[:-1] if n < 0 else [*units, *(chr(0x4E00 + i) for i in range(n))]

    command = draw.choice(ASKED[run][:1])
    return Case(
        f"{command[0]} with a run of {run} and {n:+,} symbols",
        command,
        lambda place: edit_json(place.copy(run) / "tokenizer.json", change),
        Refused(("tokenizer.json",)),
    )


@KINDS.add
def a_tokenizer_that_is_no_file(draw: Draw) -> Case:
    what = draw.choice(
        [
            "/dev/zero",
            "/dev/urandom",
            "/dev/null",
            "pipe",
            "folder",
            "missing",
            "circle",
            "",
            "x" * 300,
            draw.odd_text().lstrip("-/").replace("/", ""),
        ]
    )

    def prepare(place: Place) -> None:
        os.mkfifo(place.here / "pipe")
        (place.here / "folder").mkdir()
        (place.here / "circle").symlink_to("circle")

    return Case(f"tokenizer show {what:.40}", ["tokenizer", "show", what, *draw.choice([[], ["ab"]])], prepare)
