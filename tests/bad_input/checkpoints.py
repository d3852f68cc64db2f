"""Checkpoints whose hashes hold and that still do not fit: together, with the model, or with their own step.

Each case alters either the newest checkpoint, and the run must go on from the older one and say so, or both, and must be refused.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bad_input.case import Accepted, Case, Draw, Kinds, Place, Refused
from tests.bad_input.damage import BAD_VALUES, at, edit_json, reseal

KINDS = Kinds()

RUNS = ("translation", "language", "masked", "classification", "embedding", "instruction", "images")
SEALED, OLD, NEW = True, "step-2", "step-4"
REFUSED = tuple(f"run/{name}" for name in (".transom.lock", "config.json", "recipe.toml", "tokenizer.json"))
"""Files that a refused training may have written anew: they say what they said."""

Damage = Callable[[Path, Draw], str]
"""Alters the folder of a checkpoint and says what it did."""


def resumed(draw: Draw, damage: Damage, about: str, runs: tuple[str, ...] = RUNS, seal: bool = SEALED, both: bool | None = None) -> Case:
    """Go on with a run whose newest checkpoint, or both, were altered."""
    run, spoil_both = draw.choice(runs), draw.random() < 0.5 if both is None else both
    state = draw.getstate()

    def prepare(place: Place) -> None:
        folder = place.copy(run)
        place.write("recipe.toml", (folder / "recipe.toml").read_bytes())
        for step in (OLD, NEW) if spoil_both else (NEW,):
            draw.setstate(state)
            damage(folder / "checkpoints" / step, draw)
            if seal:
                reseal(folder / "checkpoints" / step)

    expects = Refused() if spoil_both else Accepted((NEW, "resuming from step 2"))
    about = f"{run}, {'both checkpoints' if spoil_both else 'the newest checkpoint'}: {about}"
    return Case(about, ["train", "recipe.toml", "--out", "run", "--resume"], prepare, expects, REFUSED if spoil_both else ("run",))


def in_state(draw: Draw, about: str, change: Callable[[Any, Draw], object], runs: tuple[str, ...] = RUNS) -> Case:
    """Alter state.json."""

    def damage(folder: Path, draw: Draw) -> str:
        edit_json(folder / "state.json", lambda document: change(document, draw))
        return about

    return resumed(draw, damage, about, runs)


def set_in_state(draw: Draw, path: tuple[str, ...], value: Any, runs: tuple[str, ...] = RUNS) -> Case:
    """Put a value into state.json."""

    def change(document: Any, draw: Draw) -> None:
        at(document, path[:-1])[path[-1]] = value

    return in_state(draw, f"{'.'.join(path)} = {json.dumps(value):.60}", change, runs)


PROGRESS = (
    "step",
    "position",
    "seconds",
    "n_target_tokens",
    "n_skipped",
    "consecutive_skips",
    "best",
    "validations_since_best",
    "last_validation_step",
    "window",
)
WHOLE = tuple(name for name in PROGRESS if name not in ("seconds", "best", "window"))


@KINDS.add
def progress_without_a_key(draw: Draw) -> Case:
    name = draw.choice(PROGRESS)
    return in_state(draw, f"progress without {name}", lambda document, draw: document["state"]["progress"].pop(name))


@KINDS.add
def progress_with_another_key(draw: Draw) -> Case:
    name = draw.choice(["steps", "", "self", "x" * 9_000, "\x1b[31m", "to_json", "__class__"])
    return set_in_state(draw, ("state", "progress", name), draw.choice(BAD_VALUES))


@KINDS.add
def progress_of_another_type(draw: Draw) -> Case:
    return set_in_state(draw, ("state", "progress"), draw.choice(["3", None, [], 3, True, "x" * 9_000, [["step", 4]]]))


@KINDS.add
def a_count_that_is_none(draw: Draw) -> Case:
    return set_in_state(draw, ("state", "progress", draw.choice(WHOLE)), draw.choice(BAD_VALUES))


@KINDS.add
def a_position_that_is_none(draw: Draw) -> Case:
    value = draw.choice([10**30, -1, float("nan"), -(10**30), "3", None, 1e308, float("inf"), 2**64, [0], 0.5])
    return set_in_state(draw, ("state", "progress", "position"), value)


@KINDS.add
def seconds_that_are_none(draw: Draw) -> Case:
    value = draw.choice([float("nan"), -1.0, float("inf"), float("-inf"), "3", None, [], {}, True])
    return set_in_state(draw, ("state", "progress", "seconds"), value)


@KINDS.add
def progress_of_another_step(draw: Draw) -> Case:
    return set_in_state(draw, ("state", "progress", "step"), draw.choice([0, 1, 3, 5, 40, 90, 10**9]))


@KINDS.add
def another_step_in_the_document(draw: Draw) -> Case:
    return set_in_state(draw, ("step",), draw.choice([0, 3, 40, "4", 4.0, None, True, [4], 10**30, -4, float("nan")]))


@KINDS.add
def best_figures_that_are_none(draw: Draw) -> Case:
    path, value = draw.choice(
        [
            (("best",), draw.choice(["x", None, [], 3, {"step": 4}, {"loss": 1.0}, {"a": "b"}])),
            (("best", "loss"), draw.choice(["1", None, [], {}, True, "x" * 9_000])),
            (("best", "step"), draw.choice([-1, "4", None, 10**30, 1.5, 9, [], float("nan")])),
        ]
    )
    return set_in_state(draw, ("state", "progress", *path), value)


@KINDS.add
def sums_that_are_none(draw: Draw) -> Case:
    value = draw.choice(["x", None, [], 3, {"loss": "1"}, {"loss": None}, {"a": {}}, {"n": []}])
    return set_in_state(draw, ("state", "progress", "window"), value)


@KINDS.add
def state_without_a_key(draw: Draw) -> Case:
    name = draw.choice(["progress", "scaler", "snapshots"])
    return in_state(draw, f"state without {name}", lambda document, draw: document["state"].pop(name))


@KINDS.add
def state_of_another_type(draw: Draw) -> Case:
    path = draw.choice([("state",), ("groups",)])
    return set_in_state(draw, path, draw.choice(["x", None, 3, True, {"a": 1}] if path == ("groups",) else ["x", None, 3, True, [], {}]))


@KINDS.add
def state_with_another_key(draw: Draw) -> Case:
    return set_in_state(draw, ("state", draw.choice(["more", "x" * 9_000, "\x1b[31m"])), draw.choice(BAD_VALUES))


@KINDS.add
def a_scale_that_is_none(draw: Draw) -> Case:
    value = draw.choice(["x", [], 3, {"scale": "x"}, {"scale": float("nan")}, {"growth_factor": []}, {"a": 1}])
    return set_in_state(draw, ("state", "scaler"), value)


@KINDS.add
def snapshots_that_are_none(draw: Draw) -> Case:
    value = draw.choice(["x", None, 3, {}, ["2"], [-1], [10**30], [1.5], [None], [[2]], [3], [99], [2, 2, 2], [4, 2], [2] * 5_000, [True]])
    return set_in_state(draw, ("state", "snapshots"), value, ("translation",))


@KINDS.add
def groups_that_are_none(draw: Draw) -> Case:
    value = draw.choice(
        [
            [],
            ["model"],
            ["model", "optimizer"],
            ["model", "model"],
            [3],
            [None],
            ["../x"],
            ["nothing"],
            ["model", "optimizer", "generators", "more"],
            [["model"]],
            ["x" * 9_000],
            ["\x1b[31m"],
        ]
    )
    return set_in_state(draw, ("groups",), value)


@KINDS.add
def data_of_another_run(draw: Draw) -> Case:
    """Nothing older helps here: the data are others for every checkpoint."""
    value = draw.choice(["0" * 32, "", 3, None, [], "x" * 9_000])

    def damage(folder: Path, draw: Draw) -> str:
        edit_json(folder / "state.json", lambda document: document["state"].update(data=value))
        return ""

    return resumed(draw, damage, f"data = {value!r:.40}", both=True)


@KINDS.add
def a_state_that_is_no_json(draw: Draw) -> Case:
    content = draw.choice(
        [
            b"",
            b"{",
            b"[]",
            b"null",
            b"\xff",
            b"[" * 100_000,
            b'{"a":' * 900 + b"1" + b"}" * 900,
            b'{"format_version": ' + b"1" * 5_000 + b"}",
            b'{"format_version": 2}',
        ]
    )

    def damage(folder: Path, draw: Draw) -> str:
        (folder / "state.json").write_bytes(content)
        return ""

    return resumed(draw, damage, f"state.json is {content[:30]!r}")


@KINDS.add
def a_number_of_5000_digits_in_the_state(draw: Draw) -> Case:
    name = draw.choice(WHOLE)

    def damage(folder: Path, draw: Draw) -> str:
        document = json.loads((folder / "state.json").read_text())
        document["state"]["progress"][name] = "DIGITS"
        (folder / "state.json").write_text(json.dumps(document).replace('"DIGITS"', "9" * 5_000))
        return ""

    return resumed(draw, damage, f"{name} of 5,000 digits")


@KINDS.add
def a_history_that_is_none(draw: Draw) -> Case:
    """metrics.jsonl, which the run's pages are written from at the end: refused before the first step."""
    line = draw.choice(
        [
            '{"step": "1", "kind": "train"}',
            '{"step": 1, "kind": "train", "loss": "x"}',
            '{"step": 1, "kind": 3}',
            "[]",
            "3",
            "{",
            "[" * 100000,
            '{"step": null, "kind": "train"}',
            '{"step": 1, "kind": "validation"}',
            '{"step": NaN, "kind": "train"}',
            '{"step": true}',
            '{"kind": "train"}',
            '{"step": 1, "kind": "train", "loss": ' + "9" * 5000 + "}",
            '{"step": 1e400, "kind": "train"}',
            '{"step": 1, "kind": "validation", "loss": [], "samples": 3}',
        ]
    )
    run = draw.choice(RUNS)

    def prepare(place: Place) -> None:
        folder = place.copy(run)
        place.write("recipe.toml", (folder / "recipe.toml").read_text().replace("max_steps = 4", "max_steps = 6"))
        history = (folder / "metrics.jsonl").read_text().splitlines()
        history.insert(draw.randrange(len(history)), line)
        (folder / "metrics.jsonl").write_text("".join(f"{each}\n" for each in history))

    return Case(
        f"{run}: the line {line:.60} in metrics.jsonl",
        ["train", "recipe.toml", "--out", "run", "--resume"],
        prepare,
        Refused(("metrics.jsonl",)),
        REFUSED,
    )
