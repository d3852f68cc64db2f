"""Checkpoints whose hashes hold and that still do not fit: together, with the model, or with their own step.

Each case alters either the newest checkpoint, and the run must go on from the older one and say so, or both, and must be refused.
"""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bad_input.case import Accepted, Case, Draw, Kinds, Place, Refused
from tests.bad_input.damage import BAD_VALUES, TENSOR_DAMAGE, TensorFile, at, edit_json, not_finite, reseal

KINDS = Kinds()

RUNS = ("translation", "language", "masked", "classification", "embedding", "instruction", "images")
WITH_AVERAGE = ("language", "classification")
WITH_MOMENTS = ("translation", "language", "masked", "classification", "instruction", "images")
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

    expects = Refused() if spoil_both else Accepted((NEW, "goes on from step 2"))
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


PROGRESS = ("step", "position", "seconds", "n_target_tokens", "n_skipped", "skips_in_a_row", "best", "validations_since_best", "validated_at", "window")
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
    value = draw.choice(["x", None, [], 3, {"scale": "x"}, {"scale": float("nan")}, {"growth_factor": []}, {"a": 1}])
    return set_in_state(draw, ("state", "scaler"), value)


@KINDS.add
def snapshots_that_are_none(draw: Draw) -> Case:
    value = draw.choice(["x", None, 3, {}, ["2"], [-1], [10**30], [1.5], [None], [[2]], [3], [99], [2, 2, 2], [4, 2], [2] * 5_000, [True]])
    return set_in_state(draw, ("state", "snapshots"), value, ("translation",))


@KINDS.add
def groups_that_are_none(draw: Draw) -> Case:
    value = draw.choice([[], ["model"], ["model", "optimizer"], ["model", "model"], [3], [None], ["../x"], ["nothing"], ["model", "optimizer", "generators", "more"], [["model"]], ["x" * 9_000], ["\x1b[31m"]])
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
    content = draw.choice([b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000, b'{"a":' * 900 + b"1" + b"}" * 900, b'{"format_version": ' + b"1" * 5_000 + b"}", b'{"format_version": 2}'])

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


def in_tensors(draw: Draw, group: str, runs: tuple[str, ...] = RUNS) -> Case:
    """Alter the tensors of a group so that the model does not fit them."""
    change = draw.choice(TENSOR_DAMAGE)

    def damage(folder: Path, draw: Draw) -> str:
        file = TensorFile(folder / f"{group}.safetensors")
        done = change(file, draw)
        file.write()
        return done

    return resumed(draw, damage, f"tensors of {group}, {change.__name__}", runs)


@KINDS.add
def other_tensors_of_the_optimizer(draw: Draw) -> Case:
    return in_tensors(draw, "optimizer")


@KINDS.add
def other_tensors_of_the_model(draw: Draw) -> Case:
    return in_tensors(draw, "model")


@KINDS.add
def other_tensors_of_the_average(draw: Draw) -> Case:
    return in_tensors(draw, "ema", WITH_AVERAGE)


@KINDS.add
def other_tensors_of_the_generators(draw: Draw) -> Case:
    return in_tensors(draw, "generators")


@KINDS.add
def tensors_that_are_swapped(draw: Draw) -> Case:
    """Two tensors of other shapes under each other's names."""
    group = draw.choice(["optimizer", "model"])

    def damage(folder: Path, draw: Draw) -> str:
        file = TensorFile(folder / f"{group}.safetensors")
        first = draw.choice(sorted(file.tensors))
        others = [name for name in sorted(file.tensors) if file.tensors[name][1] != file.tensors[first][1]]
        second = draw.choice(others)
        file.tensors[first], file.tensors[second] = file.tensors[second], file.tensors[first]
        file.write()
        return ""

    return resumed(draw, damage, f"two tensors of {group} swapped", WITH_MOMENTS)


@KINDS.add
def a_group_of_another_step(draw: Draw) -> Case:
    """The older optimizer with the newer weights, and the like: every file is whole."""
    run = draw.choice(RUNS)
    groups = ["model", "optimizer", "generators", *(["ema"] if run in WITH_AVERAGE else [])]
    taken = draw.sample(groups, draw.randint(1, len(groups) - 1))

    def damage(folder: Path, draw: Draw) -> str:
        for group in taken:
            shutil.copy(folder.parent / OLD / f"{group}.safetensors", folder)
        return ""

    return resumed(draw, damage, f"{', '.join(taken)} of {OLD}", (run,), both=False)


@KINDS.add
def a_group_of_another_run(draw: Draw) -> Case:
    """A run of the same shapes from another seed."""
    taken = draw.sample(["model", "optimizer", "generators"], draw.randint(1, 2))
    spoil_both = draw.random() < 0.5

    def prepare(place: Place) -> None:
        folder = place.copy("translation")
        place.write("recipe.toml", (folder / "recipe.toml").read_bytes())
        for step in (OLD, NEW) if spoil_both else (NEW,):
            for group in taken:
                shutil.copy(place.good / "twin" / "checkpoints" / step / f"{group}.safetensors", folder / "checkpoints" / step)
            reseal(folder / "checkpoints" / step)

    expects = Refused() if spoil_both else Accepted((NEW, "goes on from step 2"))
    about = f"{', '.join(taken)} of a run from another seed, in {'both checkpoints' if spoil_both else 'the newest checkpoint'}"
    return Case(about, ["train", "recipe.toml", "--out", "run", "--resume"], prepare, expects, REFUSED if spoil_both else ("run",))


@KINDS.add
def a_checkpoint_of_another_step(draw: Draw) -> Case:
    """Step 4 inside step-90."""
    name = draw.choice(["step-90", "step-5", "step-999999999999999999"])

    def damage(folder: Path, draw: Draw) -> str:
        shutil.move(folder, folder.with_name(name))
        shutil.copytree(folder.with_name(name), folder)
        return ""

    case = resumed(draw, damage, f"{NEW} also as {name}", both=False)
    return Case(case.about, case.arguments, case.prepare, Accepted((name,)), case.may_write)


@KINDS.add
def optimizer_steps_that_do_not_fit(draw: Draw) -> Case:
    """The count of steps that Adam keeps with each parameter."""
    value = draw.choice([-1.0, float("nan"), float("inf"), 1e30, 0.0, 3.0, 40.0])

    def damage(folder: Path, draw: Draw) -> str:
        import struct

        file = TensorFile(folder / "optimizer.safetensors")
        names = [name for name in sorted(file.tensors) if name.endswith("step")]
        for name in draw.choice([names, names[:1]]):
            dtype, shape, _ = file.tensors[name]
            file.tensors[name] = dtype, shape, struct.pack("<f", value)
        file.write()
        return ""

    return resumed(draw, damage, f"the optimizer's steps are {value}", ("translation", "masked", "classification", "instruction"))


@KINDS.add
def weights_that_are_not_finite(draw: Draw) -> Case:
    group = draw.choice(["model", "optimizer"])

    def damage(folder: Path, draw: Draw) -> str:
        file = TensorFile(folder / f"{group}.safetensors")
        done = not_finite(file, draw)
        file.write()
        return done

    return resumed(draw, damage, f"{group} holds numbers that are not finite", WITH_MOMENTS)


@KINDS.add
def a_changed_bit(draw: Draw) -> Case:
    name = draw.choice(["state.json", "model.safetensors", "optimizer.safetensors", "generators.safetensors"])

    def damage(folder: Path, draw: Draw) -> str:
        (folder / name).write_bytes(draw.flipped((folder / name).read_bytes()))
        return ""

    return resumed(draw, damage, f"a bit of {name} changed", seal=False)


@KINDS.add
def a_file_that_is_cut(draw: Draw) -> Case:
    name = draw.choice(["state.json", "model.safetensors", "optimizer.safetensors", "generators.safetensors", "manifest.json"])

    def damage(folder: Path, draw: Draw) -> str:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: draw.randrange(len(content) - 2)])
        return ""

    return resumed(draw, damage, f"{name} is cut", seal=False)


@KINDS.add
def a_file_that_is_missing(draw: Draw) -> Case:
    name, seal = draw.choice(["state.json", "model.safetensors", "optimizer.safetensors", "generators.safetensors"]), draw.random() < 0.5

    def damage(folder: Path, draw: Draw) -> str:
        (folder / name).unlink()
        return ""

    # A manifest that does not list a group names a checkpoint of which only the weights were kept: no fault, and nothing to tell.
    case = resumed(draw, damage, f"{name} is missing{', from the manifest too' if seal else ''}", seal=seal)
    weights_only = seal and name != "state.json" and isinstance(case.expects, Accepted)
    return Case(case.about, case.arguments, case.prepare, Accepted(("goes on from step 2",)) if weights_only else case.expects, case.may_write)


@KINDS.add
def a_file_that_is_none(draw: Draw) -> Case:
    name = draw.choice(["state.json", "model.safetensors", "optimizer.safetensors", "manifest.json"])
    what = draw.choice(["pipe", "/dev/zero", "folder", "circle", "link out"])

    def damage(folder: Path, draw: Draw) -> str:
        path = folder / name
        if what == "link out":
            target = folder.parent.parent.parent / f"{folder.name}-{name}"
            shutil.move(path, target)
            path.symlink_to(target)
            return ""
        path.unlink()
        if what == "pipe":
            os.mkfifo(path)
        elif what == "folder":
            path.mkdir()
        else:
            path.symlink_to(name if what == "circle" else what)
        return ""

    return resumed(draw, damage, f"{name} is {what}", seal=False)


@KINDS.add
def a_manifest_that_is_none(draw: Draw) -> Case:
    content = draw.choice(
        [
            {"files": {}},
            {"files": []},
            {"files": {"../../model.safetensors": {"bytes": 1, "sha256": ""}}},
            {"files": {"state.json": {"bytes": -1, "sha256": ""}}},
            {"files": {"state.json": {"bytes": "9", "sha256": 3}}},
            {"files": {"state.json": []}},
            {"files": {"x" * 9_000: {}}},
            {"files": {"\x1b[31m": {}}},
            {"files": None},
            {"files": {"state.json": {"bytes": 10**30, "sha256": "0" * 64}}},
            {},
        ]
    )

    def damage(folder: Path, draw: Draw) -> str:
        (folder / "manifest.json").write_text(json.dumps({"format_version": 1, **content}))
        return ""

    return resumed(draw, damage, f"the manifest is {content!r:.60}", seal=False)


@KINDS.add
def a_history_that_is_none(draw: Draw) -> Case:
    """metrics.jsonl, which the run's pages are written from at the end: refused before the first step."""
    line = draw.choice(
        ['{"step": "1", "kind": "train"}', '{"step": 1, "kind": "train", "loss": "x"}', '{"step": 1, "kind": 3}', "[]", "3", "{", "[" * 100_000]
        + ['{"step": null, "kind": "train"}', '{"step": 1, "kind": "validation"}', '{"step": NaN, "kind": "train"}', '{"step": true}', '{"kind": "train"}']
        + ['{"step": 1, "kind": "train", "loss": ' + "9" * 5_000 + "}", '{"step": 1e400, "kind": "train"}', '{"step": 1, "kind": "validation", "loss": [], "samples": 3}']
    )
    run = draw.choice(RUNS)

    def prepare(place: Place) -> None:
        folder = place.copy(run)
        place.write("recipe.toml", (folder / "recipe.toml").read_text().replace("max_steps = 4", "max_steps = 6"))
        history = (folder / "metrics.jsonl").read_text().splitlines()
        history.insert(draw.randrange(len(history)), line)
        (folder / "metrics.jsonl").write_text("".join(f"{each}\n" for each in history))

    return Case(f"{run}: the line {line:.60} in metrics.jsonl", ["train", "recipe.toml", "--out", "run", "--resume"], prepare, Refused(("metrics.jsonl",)), REFUSED)
