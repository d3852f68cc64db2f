"""A step for which memory runs out is repeated in halves, with the same loss; where halves would change it, an error says so."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.tiers import every
from tests.training.conftest import changed, sit
from tests.training.test_train_step import SOURCES, TARGETS, N, tiny
from transom.config.parallel import ParallelConfig
from transom.config.training import SgdConfig, TrainingConfig
from transom.data.batch import PaddedSequences, split_rows, take_rows, translation_batch
from transom.errors import ConfigError
from transom.inspection.pages.run_status import read_status
from transom.models.seq2seq import Seq2SeqTransformer
from transom.parallel.mesh import Ranks
from transom.parallel.processes.collectives import World
from transom.planning.freed_memory import FreedMemoryPolicy
from transom.training.events import Event, MemoryIsShort, MicroBatchesHalved, StepFinished
from transom.training.objectives.objective import CrossEntropy
from transom.training.optimizer import build_optimizer
from transom.training.out_of_memory import is_out_of_memory, out_of_memory_error
from transom.training.train_step import StepResult, TrainStep

CPU = torch.device("cpu")
CPU_ERROR = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 640000000000 bytes. Error code 12")
PLAIN = TrainingConfig(optimizer=SgdConfig(momentum=0.0), max_grad_norm=None)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the garbage collection of a large test session, which takes longer than the steps."""
    monkeypatch.setattr("transom.training.train_step.release_memory", lambda _: None)


def stepper(model: Seq2SeqTransformer, n_splits: int = 1) -> TrainStep:
    step = TrainStep(model, build_optimizer(model, PLAIN.optimizer), PLAIN, torch.float32, CrossEntropy(0.1))
    step.n_splits = n_splits
    return step


@contextmanager
def memory_for(model: Any, rows: int, error: Exception = CPU_ERROR, in_backward: bool = False) -> Iterator[list[int]]:
    """Let forward passes, or backward passes, of more rows fail; yield the rows of all forward passes."""
    inner, seen = model.logit_factors, list[int]()

    def fail(_: Tensor) -> None:
        raise error

    def limited(batch: Any, *more: Any) -> Any:
        seen.append(len(batch.sample_ids))
        if seen[-1] > rows and not in_backward:
            raise error
        hidden, weight = inner(batch, *more)
        if seen[-1] > rows:
            hidden.register_hook(fail)
        return hidden, weight

    model.logit_factors = limited
    try:
        yield seen
    finally:
        del model.logit_factors


def assert_same_step(a: tuple[Any, StepResult], b: tuple[Any, StepResult], tolerance: float) -> None:
    for name in ("loss", "nll", "n_target_tokens", "grad_norm", "flops"):
        assert getattr(a[1], name) == pytest.approx(getattr(b[1], name), rel=tolerance)
    for p, q in zip(a[0].parameters(), b[0].parameters(), strict=True):
        assert torch.allclose(p, q, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("error", "in_backward", "rows"),
    [(CPU_ERROR, False, 1), (CPU_ERROR, True, 5), (MemoryError("std::bad_alloc"), False, 5), (torch.OutOfMemoryError(), False, 5)],
)
def test_halves_give_the_update_of_the_whole(error: Exception, in_backward: bool, rows: int, quick: None) -> None:
    whole, halved, batch = tiny(), tiny(), translation_batch(SOURCES, TARGETS, range(N))
    expected = stepper(whole).step([batch], 0.5, 7.0)
    train_step = stepper(halved)
    with memory_for(halved, rows, error, in_backward) as seen:
        found = train_step.step([batch], 0.5, 7.0)
    assert_same_step((halved, found), (whole, expected), 1e-9)
    assert train_step.n_splits == {5: 8, 1: 32}[rows] and found.rows == {5: 4, 1: 1}[rows] and expected.rows == N
    assert seen[:3] == [32, 16, 8] and sum(seen) - 32 - 16 - 8 in (32, 32 + 4 + 2)
    assert train_step.step([batch], 0.5).rows == found.rows, "later steps have the smaller micro-batches at once"


def test_freed_memory_is_given_back_before_micro_batches_are_halved(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once: the second time, there is none to give back."""
    given_back = list[bool]()
    monkeypatch.setattr("transom.planning.freed_memory.give_back_freed_memory", lambda: given_back.append(True) or True)
    whole, repeated, batch = tiny(), tiny(), translation_batch(SOURCES, TARGETS, range(N))
    expected = stepper(whole).step([batch], 0.5, 7.0)
    train_step = stepper(repeated)
    train_step.freed_memory = FreedMemoryPolicy(CPU)
    train_step.freed_memory.kept = True
    with memory_for(repeated, 8) as seen:
        found = train_step.step([batch], 0.5, 7.0)
    assert seen[:3] == [N, N, N // 2] and len(given_back) == 2 and train_step.n_splits == 4
    assert not train_step.freed_memory.kept and train_step.freed_memory.shortage == "ran out"
    assert_same_step((repeated, found), (whole, expected), 1e-9)


@pytest.mark.parametrize("keeps_here", [True, False])
def test_all_processes_give_memory_back_if_one_keeps_it(keeps_here: bool, quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory runs out in this process alone, for a single row; the other process keeps memory, too, or it alone does."""
    given_back = list[bool]()
    monkeypatch.setattr("transom.planning.freed_memory.give_back_freed_memory", lambda: given_back.append(True) or True)

    class TwoProcesses(World):
        """Sums of this process and of another one, which has no target tokens, does not fail, and keeps memory until it is given back."""

        def all_reduce_scalars(self, *numbers: float) -> tuple[float, ...]:
            return (*numbers[:-1], numbers[-1] + (len(given_back) < 2)) if len(numbers) == 5 else numbers

        def all_reduce(self, tensors: Any) -> None:
            pass

    model, batch = tiny(), translation_batch(SOURCES[:1], TARGETS[:1], [0])
    freed = FreedMemoryPolicy(CPU)
    freed.kept = keeps_here
    two = Ranks(TwoProcesses(0, 2), ParallelConfig(data=2), CPU)
    train_step = TrainStep(model, build_optimizer(model, PLAIN.optimizer), PLAIN, torch.float32, CrossEntropy(0.1), two, freed)
    with memory_for(model, 0) as seen, pytest.raises(ConfigError, match="memory for a single row, found too little"):
        train_step.step([batch], 0.5)
    assert len(seen) == 2 and len(given_back) == 2, "once at first, and once before the step is repeated"


def test_a_repeated_step_draws_what_a_step_of_smaller_micro_batches_draws() -> None:
    """Memory runs out in the second micro-batch, after the dropout of the first: the masks are those of a step that was split at once."""
    batches = [translation_batch(SOURCES[part], TARGETS[part], range(N)[part]) for part in (slice(8), slice(8, N))]
    outcomes, drawn = list[tuple[Any, StepResult]](), list[float]()
    for n_splits, rows in ((1, 12), (2, N)):
        model = tiny(dropout=0.3)
        torch.manual_seed(4)
        train_step = stepper(model, n_splits)
        with memory_for(model, rows):
            result = train_step.step(batches, 0.5)
        outcomes.append((model, result))
        assert train_step.n_splits == 2
        drawn.append(torch.rand(1).item())
    assert drawn[0] == drawn[1], "the generators go on alike"
    assert_same_step(outcomes[0], outcomes[1], 0.0)


def test_one_row_that_does_not_fit_ends_the_run_with_what_to_lower() -> None:
    model, batch = tiny(), translation_batch(SOURCES, TARGETS, range(N))
    before = [p.detach().clone() for p in model.parameters()]
    with (
        memory_for(model, 0),
        pytest.raises(ConfigError, match=r"memory for a single row, found too little; lower model\.max_seq_len"),
    ):
        stepper(model).step([batch], 0.5)
    assert all(torch.equal(p, q) for p, q in zip(before, model.parameters(), strict=True))


def test_other_errors_are_not_taken_for_missing_memory() -> None:
    model = tiny()
    with memory_for(model, 5, RuntimeError("a bug")), pytest.raises(RuntimeError, match="a bug"):
        stepper(model).step([translation_batch(SOURCES, TARGETS, range(N))], 0.5)
    assert not is_out_of_memory(RuntimeError("shape mismatch"))
    assert is_out_of_memory(RuntimeError("std::bad_alloc"))


def test_rows_are_split_with_all_their_parts() -> None:
    batch = translation_batch(SOURCES, TARGETS, range(N))
    for n_parts, sizes in ((1, [N]), (3, [10, 11, 11]), (N + 5, [1] * N)):
        parts = split_rows(batch, n_parts)
        assert [len(part.sample_ids) for part in parts] == sizes
        for field in fields(batch.source):
            of_batch = getattr(batch.source, field.name)
            of_parts = [getattr(part.source, field.name) for part in parts]
            if field.name == "positions":
                assert all(torch.equal(x, of_batch) for x in of_parts), "one row of positions serves all rows"
            elif of_batch is None or field.name == "text_length":
                assert all(x == of_batch for x in of_parts)
            else:
                assert torch.equal(torch.cat(of_parts), of_batch)
        assert torch.equal(torch.cat([part.labels for part in parts]), batch.labels)
        assert sum((part.sample_ids for part in parts), ()) == batch.sample_ids
        assert sum(part.n_target_tokens for part in parts) == batch.n_target_tokens
    assert isinstance(take_rows(batch, slice(1)).source, PaddedSequences)


TASKS = ["masked", "classes", "tags", "languages", "vision", "convolutional", "pairs", "batchnorm"]


@pytest.mark.parametrize("task", every(len(TASKS), TASKS))
def test_each_task_has_halves_or_says_why_not(task: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """A run of one micro-batch that must be halved has the loss of a run that has memory, to rounding; pairs and batch norm refuse."""
    recipe = request.getfixturevalue("classes" if task == "batchnorm" else task)
    raw = recipe.model_dump()
    raw["model"] |= {"norm": "batchnorm"} if task == "batchnorm" else {"dropout": 0.0}
    raw["training"] |= {"precision": "fp32", "max_steps": 2, "grad_accum_steps": 1, "validate_every": 2, "log_every": 1}
    recipe = type(recipe).model_validate(raw)
    losses: dict[str, list[float]] = {}
    events = list[Event]()

    def run(name: str, most: int) -> None:
        def limit(event: Event) -> None:
            events.append(event)
            if (network := getattr(event, "model", None)) is not None and most:
                limited.append(memory_for(network, most))
                limited[-1].__enter__()
            if isinstance(event, StepFinished):
                losses.setdefault(name, []).append(event.loss)

        limited = list[Any]()
        sit(recipe, tmp_path / name, limit)

    run("whole", 0)
    if task in ("pairs", "batchnorm"):
        with pytest.raises(
            ConfigError, match=r"expected memory for a micro-batch of \d+ rows, found too little, and .*; lower training.batch"
        ):
            run("halved", 2)
        return
    run("halved", 2)
    assert losses["halved"] == pytest.approx(losses["whole"], rel=1e-4)
    halved = [event for event in events if isinstance(event, MicroBatchesHalved)]
    records = [json.loads(line) for line in (tmp_path / "halved" / "metrics.jsonl").read_text().splitlines()]
    counted = [(each["step"], each["rows"], each["n_splits"]) for each in records if each["kind"] == "halved"]
    assert counted == [(each.step, each.rows, each.n_splits) for each in halved] and halved[0].step == 1 and halved[0].rows <= 2
    assert read_status(tmp_path / "halved").n_halved == len(halved) and read_status(tmp_path / "whole").n_halved == 0
    assert "memory ran out" in halved[0].note and len(halved[0].note.splitlines()) == 1


def test_a_run_with_little_room_says_so_once(languages: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transom.planning.freed_memory.peak_memory", lambda _: 3 * 2**29)
    monkeypatch.setattr("transom.planning.freed_memory.available_memory", lambda n_processes: 2**31)
    events, folder = list[Event](), tmp_path / "run"
    sit(changed(languages, max_steps=3, log_every=1), folder, events.append)
    (short,) = (event for event in events if isinstance(event, MemoryIsShort))
    assert (short.step, short.ran_out) == (2, False)
    assert "step 2: training needs 1.5 of 2.0 GiB of memory; freed memory is given back" in short.note
    assert "step 7: memory ran out; freed memory is given back" in MemoryIsShort(7, 1, 2, ran_out=True).note
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    needed = [each.get("needed_memory") for each in records if each["kind"] == "train"]
    assert needed[0] is None and needed[1] == needed[2] != 0


@pytest.mark.long
def test_a_resumed_run_keeps_the_micro_batches_that_fit(languages: Any, tmp_path: Path) -> None:
    recipe, rows = changed(languages, max_steps=6, grad_accum_steps=1), list[list[int]]()

    def limit(event: Event) -> None:
        if (network := getattr(event, "model", None)) is not None:
            guard = memory_for(network, 4)
            rows.append(guard.__enter__())
            guards.append(guard)

    guards, halved = list[Any](), list[Event]()
    sit(changed(recipe, max_steps=3), tmp_path / "run", limit, halved.append)
    n_splits = [event.n_splits for event in halved if isinstance(event, MicroBatchesHalved)]
    halved.clear()
    sit(recipe, tmp_path / "run", limit, halved.append)
    assert n_splits and max(rows[0]) > 4 and max(rows[1]) <= 4
    assert not any(isinstance(event, MicroBatchesHalved) for event in halved)


LIMITED = """
import resource, sys
import torch
from transom.tasks.train import train
from transom.planning.memory import data_memory
resource.setrlimit(resource.RLIMIT_DATA, (data_memory() + (int(sys.argv[2]) << 20),) * 2)
fields = {"data.generate.n_files": 10, "tokenizer.vocab_size": 300, "model.d_model": 64, "model.n_layers": 2, "model.d_ff": 128,
    "training.batch_tokens": 16384, "training.max_steps": 2, "training.log_every": 1, "training.fit_to_data": False,
    "training.precision": "fp32"}
print(train("python-stdlib", sys.argv[1], fields, progress=True).step)
"""


@pytest.mark.soak
def test_a_limit_of_the_system_is_recovered_from(tmp_path: Path) -> None:
    """Under a limit on its data, a process that needs about 500 MiB trains in 300 with smaller micro-batches."""
    command = [sys.executable, "-c", LIMITED, str(tmp_path / "run"), "300"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=Path(__file__).parents[2])
    assert run.returncode == 0, run.stderr
    assert "memory ran out; micro-batches now have at most" in run.stderr


def test_images_are_told_to_lower_what_they_have() -> None:
    from transom.tasks.image_classification.schema import ImageTrainingConfig

    assert "model.image_size" in str(out_of_memory_error("it has a single row", 1, ImageTrainingConfig()))
    assert "training.batch_size" in str(out_of_memory_error("batch norm averages over its rows", 9, ImageTrainingConfig()))
    assert "training.batch_tokens" not in str(out_of_memory_error("", 9, ImageTrainingConfig()))
