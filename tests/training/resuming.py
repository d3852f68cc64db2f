"""Alter a checkpoint, tensor by tensor, under valid hashes, and resume: run as a process of its own, under glibc's heap checks.

``python -m tests.training.resuming KIND STRIDE`` trains a small run with two checkpoints, alters every STRIDE-th tensor of the newer one in
every way, and prints as JSON what became of each resumption.
"""

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.training.test_train_loop import recipe
from transom.checkpoints.checkpoint import Checkpoints, TensorGroups
from transom.checkpoints.run_folder import RunFolder
from transom.checkpoints.tensors import Origin, hash_tensors, serialize_tensors
from transom.files.atomic_io import json_bytes, write_folder
from transom.parallel.mesh import SINGLE_RANK
from transom.planning import hardware
from transom.tasks.task import build_training_setup
from transom.training import train_loop
from transom.training.setup import TrainingSetup
from transom.training.train_loop import train

OLDER, NEWER = 3, 6
KINDS: dict[str, dict[str, Any]] = {
    "adam-ema": {"optimizer": "adam", "average": {"kind": "ema", "decay": 0.9}},
    "adamw-checkpoints": {"optimizer": "adamw", "average": {"kind": "checkpoints", "n_checkpoints": 2}},
    "muon": {"optimizer": "muon", "average": "none"},
    "sgd": {"optimizer": "sgd", "average": "none"},
}
HARMS = ("resized", "transposed", "retyped", "renamed", "removed", "swapped", "added")


def harmed(groups: TensorGroups, others: TensorGroups, group: str, name: str, harm: str) -> TensorGroups:
    """Return the groups of a checkpoint with one tensor altered; ``others`` are those of another step."""
    tensors = dict(groups[group])
    x = tensors[name]
    if harm == "resized":
        tensors[name] = torch.cat([x.reshape(-1), x.reshape(-1)[:1]])
    elif harm == "transposed":
        tensors[name] = x.reshape(1, *x.shape)
    elif harm == "retyped":
        tensors[name] = x.view(torch.int8) if x.dtype == torch.uint8 else x.to(torch.float64)
    elif harm == "renamed":
        tensors[f"{name}x"] = tensors.pop(name)
    elif harm == "removed":
        del tensors[name]
    elif harm == "swapped":
        tensors[name] = others[group][name]
    elif harm == "added":
        tensors[f"more.{name}"] = x
    return {**groups, group: tensors}


def rewrite(checkpoints: Checkpoints, step: int, groups: TensorGroups, document: dict[str, Any]) -> None:
    """Write a checkpoint with valid hashes of its files around any content."""
    origin = Origin(document["run"], document["step"])
    files = {f"{name}.safetensors": serialize_tensors(tensors, origin) for name, tensors in groups.items()}
    shutil.rmtree(checkpoints.path(step))
    write_folder(checkpoints.path(step), files | {"state.json": json_bytes(document)})


def cases(groups: TensorGroups, stride: int) -> Iterator[tuple[str, str, str, bool]]:
    """List (group, tensor, harm, whether ``state.json`` has the altered group's hash)."""
    names = [(group, name) for group, tensors in groups.items() for name in tensors]
    for group, name in names[::stride]:
        for harm in HARMS:
            yield group, name, harm, False
            if harm not in ("swapped", "removed"):  # with all hashes forged, those are a state that the run could have had
                yield group, name, harm, True


def attempt(parts: TrainingSetup, touched: list[Tensor]) -> str:
    """Resume a run and return which checkpoint it used. ``touched`` gathers the tensors that reach the optimizer."""
    touched.clear()
    loop = train_loop._TrainingLoop(parts, [], SINGLE_RANK)
    watch(loop.rank.optimizer, touched)
    loop.restore()
    assert bool(loop.notes) or loop.state.step == NEWER, "an older checkpoint is used without a reason"
    return "older" if loop.state.step == OLDER else "newer"


def watch(optimizer: torch.optim.Optimizer, touched: list[Tensor]) -> None:
    """Note every tensor that is given to an optimizer."""
    load = optimizer.load_state_dict

    def noted(state: dict[str, Any]) -> None:
        touched.extend(x for entries in state["state"].values() for x in entries.values())
        load(state)

    optimizer.load_state_dict = noted  # type: ignore[method-assign]


def main(kind: str, stride: int) -> None:
    """Print, as JSON, the number of cases and those in which the altered checkpoint was used or reached the optimizer."""
    hardware.BUDGET = 0.01
    failures, n_cases, touched = list[Any](), 0, list[Tensor]()
    with tempfile.TemporaryDirectory() as work, RunFolder.create(Path(work) / "run") as folder:
        whole = recipe(**KINDS[kind], max_steps=NEWER, checkpoint_every=3)
        train(build_training_setup(whole, Path(), folder))
        checkpoints = folder.checkpoints
        (older, _, _), (newer, _, _) = checkpoints.load(OLDER), checkpoints.load(NEWER)
        document = json.loads((checkpoints.path(NEWER) / "state.json").read_bytes())
        parts = build_training_setup(whole, Path(), folder)
        assert attempt(parts, touched) == "newer"
        allowed = sorted(tuple(x.shape) for x in older["optimizer"].values())
        for group, name, harm, forged in cases(newer, stride):
            groups = harmed(newer, older, group, name, harm)
            if harm == "swapped" and torch.equal(groups[group][name], newer[group][name]):
                continue
            hashes = document["groups"] | ({group: hash_tensors(groups[group])} if forged else {})
            rewrite(checkpoints, NEWER, groups, document | {"groups": hashes})
            n_cases += 1
            result = attempt(parts, touched)
            if result != "older" or sorted(tuple(x.shape) for x in touched) != allowed:
                failures.append([group, name, harm, forged, result])
        loop = train_loop._TrainingLoop(parts, [], SINGLE_RANK)
        loop.restore()  # a step writes into all that was restored: an overrun would end the process here
        assert loop.fit(lambda: False).step == NEWER
    print(json.dumps({"cases": n_cases, "failures": failures}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
