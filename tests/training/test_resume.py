"""A checkpoint is used whole or not at all: every name, shape, type, count and origin is compared before anything is assigned."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.resuming import KINDS, NEWER, OLDER, attempt, rewrite
from tests.training.test_train_loop import recipe, same, sit, traces
from transom.checkpoints.checkpoint import Checkpoints
from transom.checkpoints.run_files import BASE, WEIGHTS
from transom.checkpoints.run_folder import RunFolder
from transom.checkpoints.tensors import Origin, TensorSpec, hash_tensors, read_metadata, read_tensors, serialize_tensors
from transom.errors import CheckpointError, DataError
from transom.files.atomic_io import json_bytes, write_folder
from transom.parallel.mesh import SINGLE_RANK
from transom.parallel.processes.collectives import World
from transom.tasks.task import build_training_setup
from transom.training import train_loop
from transom.training.metrics_window import WINDOW_SUMS, read_metrics_history
from transom.training.objectives.objective import CrossEntropy
from transom.training.optimizer import build_optimizer, state_specs
from transom.training.resume import _check_rng_states, load_resume_state
from transom.training.setup import TrainingSetup
from transom.training.train_state import CheckpointState, TrainState, gather_rng_states, optimizer_parameter_names, restore_rng_states
from transom.training.train_step import TrainStep

ROOT = Path(__file__).parents[2]
CHECKED_HEAP = {"LD_PRELOAD": "libc_malloc_debug.so.0", "MALLOC_CHECK_": "3"}
"""glibc checks its heap and aborts the process that damaged it."""

AVERAGED: dict[str, Any] = {"max_steps": NEWER, "checkpoint_every": 3, "average": {"kind": "checkpoints", "n_checkpoints": 2}}


def child(*arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **CHECKED_HEAP}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment, timeout=900)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's heap checks")
def test_the_heap_checks_see_an_overrun() -> None:
    overrun = "import ctypes, torch; x = torch.zeros(8); ctypes.memset(x.data_ptr() + x.nbytes, 1, 64); del x"
    assert child("-c", overrun).returncode == -signal.SIGABRT


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's heap checks")
@pytest.mark.parametrize(
    ("kind", "stride"),
    [
        *(pytest.param(kind, 5, marks=pytest.mark.long if kind == "sgd" else pytest.mark.soak) for kind in KINDS),
        pytest.param("adam-ema", 1, marks=pytest.mark.chaos),
    ],
)
def test_no_altered_tensor_reaches_the_optimizer(kind: str, stride: int) -> None:
    done = child("-m", "tests.training.resuming", kind, str(stride))
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout)
    assert result["failures"] == [] and result["cases"] >= 20


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with checkpoints of two steps; tests work on copies."""
    out = tmp_path_factory.mktemp("trained") / "run"
    sit(out, **AVERAGED)
    return out


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def resumed(out: Path, **training: Any) -> tuple[str, TrainingSetup]:
    """Tell which checkpoint a resumed run uses."""
    with RunFolder.create(out, resume=True) as folder:
        parts = build_training_setup(recipe(**AVERAGED | training), Path(), folder)
        return attempt(parts, []), parts


def put(document: dict[str, Any], path: str, value: object) -> None:
    *folders, name = path.split(".")
    for folder in folders:
        document = document[folder]
    if value is KeyError:
        del document[name]
    else:
        document[name] = value


def alter(checkpoints: Checkpoints, step: int, path: str, value: object) -> None:
    """Change a field of ``state.json`` and write valid hashes around it."""
    file = checkpoints.path(step) / "state.json"
    document = json.loads(file.read_bytes())
    put(document, path, value)
    groups = checkpoints.load(step).groups
    shutil.rmtree(checkpoints.path(step))
    origin = Origin(document["run"], NEWER) if isinstance(document.get("run"), str) else None
    files = {f"{name}.safetensors": serialize_tensors(tensors, origin) for name, tensors in groups.items()}
    write_folder(checkpoints.path(step), files | {"state.json": json_bytes(document)})


WRONG: list[tuple[str, object]] = [
    ("state.progress", KeyError),
    ("state.progress", "x"),
    ("state.progress.more", 1),
    ("state.progress.step", KeyError),
    ("state.progress.step", 4),
    ("state.progress.step", "6"),
    ("state.progress.step", True),
    ("state.progress.position", 10**30),
    ("state.progress.position", -1),
    ("state.progress.position", float("nan")),
    ("state.progress.position", 1e30),
    ("state.progress.position", NEWER - 1),
    ("state.progress.position", 100 * NEWER + 1),
    ("state.progress.seconds", float("inf")),
    ("state.progress.seconds", -1.0),
    ("state.progress.n_skipped", NEWER + 1),
    ("state.progress.consecutive_skips", 1),
    ("state.progress.last_validation_step", NEWER + 1),
    ("state.progress.best", {"loss": 1.0}),
    ("state.progress.best", {"step": NEWER + 1, "loss": 1.0}),
    ("state.progress.best", {"step": 4, "loss": "low"}),
    ("state.progress.best", []),
    ("state.progress.window", {"steps": 1}),
    ("state.progress.window", {"loss": "x"}),
    ("state.scaler", {"scale": 1.0}),
    ("state.scaler", KeyError),
    ("state.snapshots", [1]),
    ("state.snapshots", [NEWER + 3]),
    ("state.snapshots", ["3"]),
    ("state.snapshots", [6, 3]),
    ("state.data", 5),
    ("state.more", 5),
    ("state", KeyError),
    ("state", []),
    ("groups", KeyError),
    ("groups", []),
    ("groups", {"model": "0" * 64}),
    ("groups.more", "0" * 64),
    ("run", "0" * 32),
    ("run", 7),
    ("run", None),
    ("step", 5),
    ("step", 10**30),
    ("more", 1),
]


@pytest.mark.parametrize(("path", "value"), WRONG, ids=lambda x: repr(x)[:40])
def test_a_state_that_does_not_fit_is_passed_over_with_a_reason(run: Path, path: str, value: object) -> None:
    alter(RunFolder.open(run).checkpoints, NEWER, path, value)
    assert resumed(run)[0] == "older"  # attempt() asserts that there is a reason


@pytest.mark.parametrize(("measured", "used"), [((), "newer"), (("max_expert_load", "expert_overflow"), "older")])
def test_a_window_has_the_measurements_of_the_models_own_components(run: Path, measured: tuple[str, ...], used: str) -> None:
    alter(RunFolder.open(run).checkpoints, NEWER, "state.progress.window", dict.fromkeys((*WINDOW_SUMS, *measured), 1))
    assert resumed(run)[0] == used


def test_a_state_of_other_data_ends_the_run(run: Path) -> None:
    alter(RunFolder.open(run).checkpoints, NEWER, "state.data", "0" * 32)
    with pytest.raises(DataError, match="expected the run's original data"):
        resumed(run)


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors", "generators.safetensors"])
def test_a_file_of_another_step_is_refused(run: Path, file: str) -> None:
    checkpoints = RunFolder.open(run).checkpoints
    contents = {path.name: path.read_bytes() for path in checkpoints.path(NEWER).iterdir() if path.name != "manifest.json"}
    contents[file] = (checkpoints.path(OLDER) / file).read_bytes()
    shutil.rmtree(checkpoints.path(NEWER))
    write_folder(checkpoints.path(NEWER), contents)
    with pytest.raises(CheckpointError, match=f"expected tensors of step {NEWER} of run [0-9a-f]{{8}}, found tensors of step {OLDER} of"):
        checkpoints.load(NEWER)
    assert resumed(run)[0] == "older"


def test_a_step_inside_another_steps_folder_is_refused(run: Path) -> None:
    checkpoints = RunFolder.open(run).checkpoints
    shutil.copytree(checkpoints.path(OLDER), checkpoints.path(9))
    with RunFolder.create(run, resume=True) as folder:
        newest = folder.checkpoints.latest()
        assert (
            newest is not None and newest.step == NEWER and "expected the state of step 9, found the state of step 3" in newest.rejected[0]
        )


def test_another_runs_checkpoint_and_weights_are_refused(run: Path, tmp_path: Path) -> None:
    sit(tmp_path / "other", **AVERAGED, seed=2)
    ours, theirs = RunFolder.open(run), RunFolder.open(tmp_path / "other")
    assert ours.run_id != theirs.run_id
    shutil.rmtree(ours.checkpoints.path(NEWER))
    shutil.copytree(theirs.checkpoints.path(NEWER), ours.checkpoints.path(NEWER))
    assert resumed(run)[0] == "older"
    shutil.copyfile(theirs.path / WEIGHTS, ours.path / WEIGHTS)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: expected weights of run [0-9a-f]{8} \(config\.json\), found"):
        ours.read_weights(WEIGHTS)


def test_equal_runs_have_one_id_and_leave_the_same_bytes(trained: Path, tmp_path: Path) -> None:
    sit(tmp_path / "again", **AVERAGED)
    assert (tmp_path / "again" / WEIGHTS).read_bytes() == (trained / WEIGHTS).read_bytes()
    folder, note = RunFolder.open(trained), read_metadata(trained / WEIGHTS)
    best = folder.checkpoints.load(NEWER).state["progress"]["best"]
    assert note.origin == (folder.run_id, best["step"]) and note.sha256


def test_weights_that_are_not_finite_are_refused(run: Path) -> None:
    checkpoints = RunFolder.open(run).checkpoints
    groups = checkpoints.load(NEWER).groups
    name = next(iter(groups["model"]))
    broken = groups["model"][name].clone()
    broken.view(-1)[1] = torch.inf
    document = json.loads((checkpoints.path(NEWER) / "state.json").read_bytes())
    document["groups"].pop("model")
    altered = {**groups, "model": {**groups["model"], name: broken}}
    document["groups"]["model"] = hash_tensors(altered["model"])
    rewrite(checkpoints, NEWER, altered, document)
    assert resumed(run)[0] == "older"
    weights = read_tensors(run / WEIGHTS)
    weights[next(iter(weights))].view(-1)[0] = torch.nan
    (run / WEIGHTS).write_bytes(serialize_tensors(weights))
    with pytest.raises(CheckpointError, match=r"expected finite weights, found 1 of [\d,]+ values of '.*' NaN or infinite"):
        RunFolder.open(run).load_weights(resumed(run)[1].model)


def as_format_1(checkpoints: Checkpoints, step: int, numbers: dict[str, int]) -> None:
    """Write a checkpoint as transom wrote it before formats had run ids: optimizer tensors by number, nothing in the metadata."""
    groups, _, _ = checkpoints.load(step)
    document = json.loads((checkpoints.path(step) / "state.json").read_bytes())
    groups["optimizer"] = {f"{numbers[(key := name.rpartition('.'))[0]]}.{key[2]}": x for name, x in groups["optimizer"].items()}
    old = {"format_version": 1, "step": step, "groups": list(groups), "state": document["state"]}
    shutil.rmtree(checkpoints.path(step))
    files = {f"{name}.safetensors": serialize_tensors(tensors) for name, tensors in groups.items()}
    write_folder(checkpoints.path(step), files | {"state.json": json_bytes(old)})


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_of_format_1_goes_on_bit_for_bit(tmp_path: Path, kind: str) -> None:
    training = {**KINDS[kind], "checkpoint_every": 3}
    sit(tmp_path / "alone", **training)
    out = tmp_path / "old"
    sit(out, **training, max_steps=NEWER)
    with RunFolder.create(out, resume=True) as folder:
        parts = build_training_setup(recipe(**training), Path(), folder)
        optimizer = build_optimizer(parts.model, parts.recipe.training.optimizer)
        numbers = {name: number for number, name in enumerate(optimizer_parameter_names(parts.model, optimizer))}
        for step in folder.checkpoints.steps():
            as_format_1(folder.checkpoints, step, numbers)
    config = json.loads((out / "config.json").read_bytes())
    (out / "config.json").write_bytes(json_bytes({"format_version": 1, "model": config["model"]}))
    assert RunFolder.open(out).run_id is None
    sit(out, **training)
    same_but_for_the_last_validation(tmp_path / "alone", out)
    assert RunFolder.open(out).run_id == RunFolder.open(tmp_path / "alone").run_id


def same_but_for_the_last_validation(a: Path, b: Path) -> None:
    """Compare the ends of two runs, of which one validated at step 6, where its sitting ended."""
    (tensors, _), (others, _) = traces(a), traces(b)
    assert tensors.keys() == others.keys()
    for name, x in tensors.items():
        if isinstance(x, torch.Tensor) and not name.startswith("kept/"):
            assert torch.equal(x, others[name]), name


def test_an_older_optimizer_of_format_1_is_told_by_its_steps(tmp_path: Path) -> None:
    training = {**KINDS["adam-ema"], "checkpoint_every": 3, "max_steps": NEWER}
    sit(tmp_path, **training)
    with RunFolder.create(tmp_path, resume=True) as folder:
        checkpoints = folder.checkpoints
        parts = build_training_setup(recipe(**training), Path(), folder)
        optimizer = build_optimizer(parts.model, parts.recipe.training.optimizer)
        numbers = {name: number for number, name in enumerate(optimizer_parameter_names(parts.model, optimizer))}
        for step in (OLDER, NEWER):
            as_format_1(checkpoints, step, numbers)
        contents = {path.name: path.read_bytes() for path in checkpoints.path(NEWER).iterdir() if path.name != "manifest.json"}
        contents["optimizer.safetensors"] = (checkpoints.path(OLDER) / "optimizer.safetensors").read_bytes()
        shutil.rmtree(checkpoints.path(NEWER))
        write_folder(checkpoints.path(NEWER), contents)
        optimizer = build_optimizer(parts.model, parts.recipe.training.optimizer)
        loss = CrossEntropy(parts.recipe.training.label_smoothing)
        train_step = TrainStep(parts.model, optimizer, parts.recipe.training, torch.float32, loss)
        with pytest.raises(CheckpointError, match=f"expected the optimizer's state after {NEWER} updates, found that after {OLDER}"):
            load_resume_state(checkpoints, NEWER, train_step, parts.task)
        assert attempt(parts, []) == "older"


@pytest.mark.parametrize(
    "line",
    [
        {"kind": "train", "loss": "x", "learning_rate": 0.1},
        {"kind": "train", "learning_rate": 0.1},
        {"kind": "train", "loss": 1.0, "learning_rate": "high"},
        {"kind": "train", "loss": 1.0, "learning_rate": True},
        {"kind": "validation", "loss": 1.0, "best": "yes", "seconds": 1.0, "samples": []},
        {"kind": "validation", "loss": 1.0, "best": True, "seconds": 1.0, "samples": ["x"]},
        {"kind": "validation", "loss": 1.0, "best": True},
        {"kind": "skipped", "samples": "line 1"},
        {"kind": "thought"},
        {},
    ],
    ids=str,
)
def test_a_metrics_line_with_a_wrong_field_is_named_before_the_training(run: Path, line: dict[str, Any]) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 1, **line}) + "\n")
    number = (run / "metrics.jsonl").read_text().count("\n")
    with pytest.raises(CheckpointError, match=rf"metrics\.jsonl:{number}: .*expected a value that transom writes.*delete this line"):
        read_metrics_history(RunFolder.open(run).metrics)
    with pytest.raises(CheckpointError, match=rf"metrics\.jsonl:{number}: "):
        resumed(run)


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda states: states.pop("cpu"), "found none under 'cpu'"),
        (
            lambda states: states.update({"rank-2.cpu": states.pop("rank-1.cpu")}),
            "expected random generator states of 2 processes, found none under 'rank-1.cpu'",
        ),
        (lambda states: states.update({"cpu.0": states["cpu"]}), "found 'cpu.0'"),
        (lambda states: states.update(cpu=states["cpu"][:-1]), "expected the state of a torch.Generator under 'cpu'"),
        (lambda states: states.update(cpu=torch.full_like(states["cpu"], 255)), "expected the state of a torch.Generator under 'cpu'"),
        (lambda states: states.update(cpu=states["cpu"].float()), r"expected 'cpu' as a vector of uint8, found float32\["),
        (lambda states: states.update({"cuda.x": states["cpu"]}), "found 'cuda.x'"),
        (lambda states: states.update({"rank-2.cuda": states["cpu"]}), "found 'rank-2.cuda'"),
    ],
)
def test_generators_of_every_process_are_checked(harm: Callable[[dict[str, Any]], object], words: str) -> None:
    states = {**gather_rng_states(World()), "rank-1.cpu": torch.get_rng_state(), "cuda.0": torch.get_rng_state()}
    states["rank-1.cuda"] = torch.get_rng_state()
    _check_rng_states(Path("g"), states)
    harm(states)
    with pytest.raises(CheckpointError, match=words):
        _check_rng_states(Path("g"), states)


def test_a_new_rank_draws_from_its_own_seed_and_the_others_go_on() -> None:
    states = {**gather_rng_states(World()), "rank-1.cpu": torch.Generator().manual_seed(7).get_state()}
    drawn = list[float]()
    for rank, step in ((0, 5), (1, 5), (2, 5), (3, 5), (2, 6), (2, 5)):
        restore_rng_states(states, rank, (1, rank, step))
        drawn.append(torch.rand(()).item())
    assert len({*drawn}) == 5 and drawn[2] == drawn[5]
    assert drawn[1] == torch.rand((), generator=torch.Generator().manual_seed(7)).item()


def test_the_state_of_a_loss_scaler_comes_back() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    saved = {"progress": TrainState().model_dump(), "scaler": scaler.state_dict(), "snapshots": []}
    state = CheckpointState.model_validate(json.loads(json.dumps(saved)))
    assert state.scaler is not None and state.scaler.model_dump(by_alias=True) == scaler.state_dict()
    assert CheckpointState.model_validate({**saved, "scaler": {}}).scaler is None


@pytest.mark.parametrize("kind", KINDS)
def test_every_optimizer_keeps_what_is_expected_of_it(tmp_path: Path, kind: str) -> None:
    with RunFolder.create(tmp_path) as folder:
        parts = build_training_setup(recipe(**KINDS[kind], max_steps=1), Path(), folder)
        loop = train_loop._TrainingLoop(parts, [], SINGLE_RANK)
        loop.fit(lambda: False)
    for parameter in parts.model.parameters():
        kept = loop.rank.optimizer.state[parameter]
        assert {name: TensorSpec.of(x) for name, x in kept.items()} == state_specs(loop.rank.optimizer, parameter)


@pytest.mark.long
def test_the_weights_that_a_run_adapts_carry_its_id(tmp_path: Path) -> None:
    sit(tmp_path / "first", **AVERAGED)
    adapter = {"kind": "lora", "rank": 2}
    sit(tmp_path / "tuned", **AVERAGED, init_from=str(tmp_path / "first"), adapter=adapter)
    tuned = RunFolder.open(tmp_path / "tuned")
    assert read_metadata(tuned.path / BASE).origin == (tuned.run_id, 0)
    sit(tmp_path / "tuned-too", **AVERAGED, init_from=str(tmp_path / "first"), adapter=adapter, seed=2)
    shutil.copyfile(tmp_path / "tuned-too" / BASE, tuned.path / BASE)
    with pytest.raises(
        CheckpointError,
        match=r"base\.safetensors: expected weights of run [0-9a-f]{8} \(config\.json\), found weights of run [0-9a-f]{8}; restore",
    ):
        tuned.read_weights(BASE)


def test_a_damaged_history_leaves_the_run_as_it_was(run: Path, trained: Path) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "kind": "train", "loss": "x"}\n')
    with pytest.raises(CheckpointError):
        resumed(run)
    (run / "metrics.jsonl").write_bytes((trained / "metrics.jsonl").read_bytes())
    same(run, trained)
