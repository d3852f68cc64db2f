"""Checkpoints whose tensors or files are another model's, another step's, another run's, damaged or missing."""

import json
import os
import shutil
import struct
from pathlib import Path

from tests.bad_input.case import Accepted, Case, Draw, Kinds, Place, Refused
from tests.bad_input.checkpoints import NEW, OLD, REFUSED, RUNS, resumed
from tests.bad_input.damage import TENSOR_DAMAGE, TensorFile, not_finite, reseal

KINDS = Kinds()

WITH_AVERAGE = ("language", "classification")
WITH_MOMENTS = ("translation", "language", "masked", "classification", "instruction", "images")


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

    expects = Refused() if spoil_both else Accepted((NEW, "resuming from step 2"))
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
    return Case(
        case.about, case.arguments, case.prepare, Accepted(("resuming from step 2",)) if weights_only else case.expects, case.may_write
    )


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
