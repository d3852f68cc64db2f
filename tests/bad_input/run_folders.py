"""Run folders whose configuration, weights, tokenizer or recipe is damaged, hostile, or another run's."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bad_input.case import Case, Draw, Kinds, Place, Refused
from tests.bad_input.damage import BAD_VALUES, TENSOR_DAMAGE, TensorFile, edit_json, not_finite

KINDS = Kinds()

ASKED: dict[str, tuple[list[str], ...]] = {
    "translation": (
        ["translate", "run", "ab ba"],
        ["score", "run", "--source", "GOOD/data/few.source", "--target", "GOOD/data/few.target"],
        ["compare", "GOOD/translation", "run", "--source", "GOOD/data/few.source", "--target", "GOOD/data/few.target", "--resamples", "5"],
        [
            "train",
            "translation",
            "--source",
            "GOOD/data/pairs.source",
            "--target",
            "GOOD/data/pairs.target",
            "--init-from",
            "run",
            "--out",
            "out",
        ],
    ),
    "language": (
        ["generate", "run", "ab"],
        ["generate", "run", "ab", "--json"],
        ["compare-attention", "run", "--text", "ab ba", "--repeats", "1"],
        ["train", "text-bpe", "--text", "GOOD/data/text.txt", "--init-from", "run", "--out", "out"],
    ),
    "masked": (["fill", "run", "ab [MASK]"], ["embed", "run", "ab"]),
    "classification": (["classify", "run", "ab"], ["classify", "run", "--input", "GOOD/data/few.source", "--json"]),
    "embedding": (["embed", "run", "ab"],),
    "instruction": (["generate", "run", "ab"],),
    "images": (["classify", "run", "GOOD/data/images/dark/0.png"],),
}
"""How each run is asked."""

OF_TEXT = tuple(run for run in ASKED if run != "images")


def asked(
    draw: Draw,
    about: str,
    damage: Callable[[Path, Draw], object],
    names: tuple[str, ...] = (),
    runs: tuple[str, ...] = tuple(ASKED),
    loads_only: bool = False,
) -> Case:
    """Ask a run that was damaged."""
    run = draw.choice(runs)
    command = draw.choice([each for each in ASKED[run] if not (loads_only and each[0] == "train")])
    return Case(f"{command[0]} with a run of {run}: {about}", command, lambda place: damage(place.copy(run), draw), Refused(names))


def in_config(draw: Draw, about: str, change: Callable[[Any], object], runs: tuple[str, ...] = tuple(ASKED)) -> Case:
    """Alter config.json."""
    return asked(draw, about, lambda run, draw: edit_json(run / "config.json", change), (), runs)


NUMBERS = ("d_model", "n_heads", "max_seq_len")


@KINDS.add
def a_configuration_that_is_cut(draw: Draw) -> Case:
    return asked(
        draw,
        "config.json is cut",
        lambda run, draw: (run / "config.json").write_bytes(draw.cut((run / "config.json").read_bytes()[:-1])),
        ("config.json",),
    )


@KINDS.add
def a_configuration_that_is_no_json(draw: Draw) -> Case:
    content = draw.choice(
        [
            b"",
            b"[]",
            b"null",
            b"\xff{}",
            b"[" * 100_000,
            b'{"a":' * 900 + b"1" + b"}" * 900,
            b'{"format_version": ' + b"1" * 5_000 + b"}",
            b"{}",
            b"\0" * 99,
            b"x" * (2**20 + 9),
        ]
    )
    return asked(draw, f"config.json is {content[:20]!r}", lambda run, draw: (run / "config.json").write_bytes(content), ("config.json",))


@KINDS.add
def another_version(draw: Draw) -> Case:
    value = draw.choice([0, 2, -1, "1", None, True, 1.0, [], 10**30, float("nan")])
    return in_config(draw, f"format_version {value!r}", lambda document: document.update(format_version=value))


@KINDS.add
def a_size_that_is_none(draw: Draw) -> Case:
    name, value = (
        draw.choice([name for name in NUMBERS if name != "n_heads"]),
        draw.choice([each for each in BAD_VALUES if each is not None]),
    )
    return in_config(draw, f"model.{name} = {value!r:.30}", lambda document: document["model"].update({name: value}), OF_TEXT)


@KINDS.add
def another_size(draw: Draw) -> Case:
    name, value = draw.choice(
        [("d_model", 8), ("d_model", 32), ("n_heads", 3), ("d_ff", 99), ("d_model", 2**20), ("d_ff", 2**40), ("d_model", 10**9)]
    )
    return in_config(draw, f"model.{name} = {value}", lambda document: document["model"].update({name: value}), OF_TEXT)


@KINDS.add
def a_number_of_5000_digits(draw: Draw) -> Case:
    def damage(run: Path, draw: Draw) -> None:
        text = (run / "config.json").read_text()
        (run / "config.json").write_text(text.replace(": 16,", f": {'9' * 5_000},", 1))

    return asked(draw, "d_model of 5,000 digits", damage, ("config.json",), OF_TEXT)


@KINDS.add
def a_million_positions(draw: Draw) -> Case:
    n = draw.choice([10**6, 10**7, 10**9, 2**31, 2**62])
    too = draw.random() < 0.5
    n = max(n, 10**9) if too else n  # a recipe may well ask for a million

    def damage(run: Path, draw: Draw) -> None:
        edit_json(run / "config.json", lambda document: document["model"].update(max_seq_len=n))
        if too:
            recipe = (run / "recipe.toml").read_text()
            (run / "recipe.toml").write_text(recipe.replace("max_seq_len = 32", f"max_seq_len = {n}"))

    about = f"max_seq_len = {n:,} in config.json{' and recipe.toml' if too else ''}"
    return asked(draw, about, damage, (), OF_TEXT, loads_only=True)


@KINDS.add
def a_field_that_is_odd(draw: Draw) -> Case:
    change = draw.choice(["unknown", "missing", "kind", "component", "model"])
    odd = draw.odd_text()

    def alter(document: Any) -> None:
        if change == "unknown":
            document["model"][odd] = 1
        elif change == "missing":
            document["model"].pop("kind")
        elif change == "kind":
            document["model"]["kind"] = odd
        elif change == "component":
            document["model"]["norm"] = {"kind": odd}
        else:
            document["model"] = odd

    return in_config(draw, f"config.json: {change}, {odd:.20}", alter)


@KINDS.add
def a_file_of_another_run(draw: Draw) -> Case:
    run, name = draw.choice(OF_TEXT), draw.choice(["config.json", "model.safetensors", "tokenizer.json"])
    other = draw.choice([each for each in OF_TEXT if each != run])
    command = draw.choice([each for each in ASKED[run] if each[0] != "train"])

    def prepare(place: Place) -> None:
        place.copy(run)
        place.write(f"run/{name}", (place.good / other / name).read_bytes())

    # A tokenizer of as many symbols is one that fits: only the text would be another.
    return Case(f"{command[0]} with a run of {run} and {name} of {other}", command, prepare)


@KINDS.add
def a_recipe_of_another_run(draw: Draw) -> Case:
    run, other = draw.choice(
        [
            ("translation", "masked"),
            ("language", "translation"),
            ("masked", "images"),
            ("images", "language"),
            ("instruction", "classification"),
        ]
    )
    command = draw.choice([each for each in ASKED[run] if each[0] not in ("train", "compare-attention")])

    def prepare(place: Place) -> None:
        place.copy(run)
        place.write("run/recipe.toml", (place.good / other / "recipe.toml").read_bytes())

    return Case(f"{command[0]} with a run of {run} and the recipe of {other}", command, prepare)


@KINDS.add
def a_file_that_is_missing(draw: Draw) -> Case:
    name = draw.choice(["config.json", "model.safetensors", "tokenizer.json"])
    return asked(draw, f"no {name}", lambda run, draw: (run / name).unlink(), (), OF_TEXT)


@KINDS.add
def a_file_that_is_none(draw: Draw) -> Case:
    name = draw.choice(["config.json", "model.safetensors", "tokenizer.json", "recipe.toml"])
    what = draw.choice(["pipe", "/dev/zero", "/dev/urandom", "folder", "/etc/hostname", *(["circle"] if name != "recipe.toml" else [])])

    def damage(run: Path, draw: Draw) -> None:
        path = run / name
        path.unlink()
        if what == "pipe":
            os.mkfifo(path)
        elif what == "folder":
            path.mkdir()
        else:
            path.symlink_to(name if what == "circle" else what)

    return asked(draw, f"{name} is {what}", damage, (), OF_TEXT, loads_only=name == "recipe.toml")


@KINDS.add
def weights_that_are_cut(draw: Draw) -> Case:
    return asked(
        draw,
        "weights are cut",
        lambda run, draw: (run / "model.safetensors").write_bytes(draw.cut((run / "model.safetensors").read_bytes())),
        ("model.safetensors",),
    )


@KINDS.add
def weights_with_a_changed_bit(draw: Draw) -> Case:
    return asked(
        draw,
        "a bit of the weights changed",
        lambda run, draw: (run / "model.safetensors").write_bytes(draw.flipped((run / "model.safetensors").read_bytes(), 1, 8)),
        ("model.safetensors",),
    )


@KINDS.add
def no_safetensors(draw: Draw) -> Case:
    content = draw.choice(
        [
            b"",
            b"\x80\x04.",
            b"PK\x03\x04" + b"\x00" * 99,
            b"\xff" * 99,
            (2**62).to_bytes(8, "little") + b"{}",
            (2).to_bytes(8, "little") + b"{}",
            b"\x00" * 8,
            (5).to_bytes(8, "little") + b"[[[[[",
            (200000).to_bytes(8, "little") + b"[" * 200000,
            (9).to_bytes(8, "little") + b'{"a": 1}\n',
        ]
    )
    return asked(
        draw, f"weights are {content[:20]!r}", lambda run, draw: (run / "model.safetensors").write_bytes(content), ("model.safetensors",)
    )


@KINDS.add
def a_header_that_lies(draw: Draw) -> Case:
    change = draw.choice(
        [
            {"shape": [2**40]},
            {"shape": [-1]},
            {"data_offsets": [0, 2**50]},
            {"data_offsets": [9, 3]},
            {"dtype": "X"},
            {"shape": "x"},
            {"shape": [2**63, 2]},
            {"dtype": "F64"},
        ]
    )

    def damage(run: Path, draw: Draw) -> None:
        content = (run / "model.safetensors").read_bytes()
        size = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + size])
        header[draw.choice([name for name in sorted(header) if name != "__metadata__"])].update(change)
        spelled = json.dumps(header).encode()
        (run / "model.safetensors").write_bytes(len(spelled).to_bytes(8, "little") + spelled + content[8 + size :])

    return asked(draw, f"a tensor's header says {change}", damage, ("model.safetensors",))


@KINDS.add
def other_tensors(draw: Draw) -> Case:
    change = draw.choice(TENSOR_DAMAGE)

    def damage(run: Path, draw: Draw) -> None:
        file = TensorFile(run / "model.safetensors")
        change(file, draw)
        file.write()

    return asked(draw, f"weights, {change.__name__}, their hash right", damage, (), tuple(ASKED), loads_only=True)


@KINDS.add
def weights_that_are_not_finite(draw: Draw) -> Case:
    def damage(run: Path, draw: Draw) -> None:
        file = TensorFile(run / "model.safetensors")
        not_finite(file, draw)
        file.write()

    return asked(draw, "weights hold NaN or infinities, their hash right", damage, ("model.safetensors",))


@KINDS.add
def a_table_of_tied_tensors_that_is_none(draw: Draw) -> Case:
    note = draw.choice(
        [
            "",
            "[]",
            "3",
            "{",
            "[" * 100_000,
            '{"tied": 3}',
            '{"tied": {"a": "b"}}',
            '{"tied": {"a": 3}}',
            '{"tied": {}, "sha256": 3}',
            '{"sha256": "0"}',
            '{"more": 1}',
            '{"tied": {}, "sha256": ""}',
        ]
    )

    def damage(run: Path, draw: Draw) -> None:
        file = TensorFile(run / "model.safetensors")
        file.metadata["transom"] = note
        file.write(seal=False)

    return asked(draw, f"a note of the weights is {note:.30}", damage, ("model.safetensors",))


@KINDS.add
def a_recipe_of_a_run_that_is_bad(draw: Draw) -> Case:
    content = draw.choice(
        [
            "[" * 900 + "]" * 900,
            f"a = {'[' * 900}{']' * 900}\n",
            f"a = {'9' * 5_000}\n",
            f"{'a.' * 20_000}b = 1\n",
            "[model]\nd_model = 1e308\n",
            "=\n",
            "beam = 3\n",
            "task = 'nothing'\n",
            "\x1b[2J",
            "#" * (2**20 + 9),
            'task = "' + "x" * 10_000 + '"\n',
            f"a = {'{a=' * 900}1{'}' * 900}\n",
        ]
    )
    append = draw.random() < 0.5

    def damage(run: Path, draw: Draw) -> None:
        before = (run / "recipe.toml").read_text() if append else ""
        (run / "recipe.toml").write_text(content + before)

    return asked(draw, f"recipe.toml begins {content[:20]!r}", damage, (), tuple(ASKED), loads_only=True)


@KINDS.add
def a_ledger_that_cannot_be_written(draw: Draw) -> Case:
    what = draw.choice(["folder", "pipe", "link", "/dev/full", "circle"])

    def prepare(place: Place) -> None:
        run = place.copy("translation")
        path = run / "ledger.jsonl"
        path.unlink(missing_ok=True)
        place.write("precious", "precious")
        if what == "folder":
            path.mkdir()
        elif what == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to({"link": "../precious", "circle": "ledger.jsonl"}.get(what, what))

    command = draw.choice(["evaluate", "score"])
    return Case(
        f"{command}: the ledger is {what}",
        [command, "run", "--source", "GOOD/data/few.source", "--target", "GOOD/data/few.target"],
        prepare,
        Refused(("ledger.jsonl",)),
    )
