"""Measure where the time and the memory of a training step go: ``transom profile``."""

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, BinaryIO

import torch
from torch.profiler import ProfilerActivity, profile

from transom.config.architecture import ModelConfig, TransformerConfig
from transom.config.parallel import ParallelConfig
from transom.files.atomic_io import write_stream
from transom.parallel.mesh import Ranks
from transom.parallel.processes.collectives import SINGLE_PROCESS
from transom.planning.flops import count_flops, count_pair_flops, list_passes
from transom.planning.hardware import LOW_UTILIZATION
from transom.planning.memory import peak_memory, used_memory
from transom.planning.training_bytes import FLOAT32, TrainingBytes
from transom.training.lr_schedule import learning_rate
from transom.training.plan_run import plan_run
from transom.training.rank_state import RankState
from transom.training.setup import TrainingSetup
from transom.training.step_ranges import (
    ATTENTION,
    COMPILED,
    COMPONENTS,
    CONVOLUTIONS,
    EMBEDDING,
    FEED_FORWARD,
    NORMS,
    OPTIMIZER,
    OUTPUT,
    PARTS,
    PROJECTIONS,
    RECURRENT,
    STEP,
    Operator,
    StepTimes,
    add_times,
    named_range,
    step_ranges,
)

WARM_UP_STEPS = 3
"""Steps that are not counted: they create the state of the optimizer, build kernels, and show how much memory a step needs."""

TRACED_STEPS = 2
"""Steps of a trace."""

Progress = Callable[[int, int], None]
"""Called with the number of steps done and their total number."""

N_OPERATORS = 10
"""Operators that are listed."""

MAX_WAITING, MAX_OPTIMIZER = 0.05, 0.15
"""Shares of a step above which a sentence of advice is printed on waiting for data and on the optimizer."""

WAITING, REST = "waiting for data", "the rest"


@dataclass(frozen=True)
class ComponentTime:
    """Time of one component in a step.

    Attributes:
        forward: seconds of the forward pass.
        backward: seconds of the backward pass, with activations that it computes again.
        flops: FLOPs of matrix products, forward and backward; 0 without any.
    """

    forward: float
    backward: float
    flops: float

    @property
    def seconds(self) -> float:
        """Seconds of both passes."""
        return self.forward + self.backward


@dataclass(frozen=True)
class MemoryUse:
    """Memory of the first steps in bytes, above that before data and model were loaded.

    Attributes:
        peak: largest number of bytes at once, at least the sum of the five below.
        weights: the weights, and the copy that validates.
        gradients: gradients of the trained weights.
        optimizer: state of the optimizer.
        average: averaged weights.
        data: training data and what else is there before the first step, which ``transom plan`` does not predict.
        activations: the rest: activations, buffers and libraries.
        predicted: bytes that ``transom plan`` predicts.
    """

    peak: int
    weights: int
    gradients: int
    optimizer: int
    average: int
    data: int
    activations: int
    predicted: TrainingBytes


@dataclass(frozen=True)
class StepProfile:
    """The budget of a training step. Its time is a median over the measured steps, its FLOPs and tokens are means.

    Attributes:
        name: name of the recipe.
        steps: number of measured steps.
        precision: dtype of the matrix products.
        threads: number of threads.
        tokens: target tokens per step, or the unit of the task.
        seconds: seconds of a step without the profiler, and of waiting for its data.
        parts: seconds by part of a step with the profiler, whose median they add up to.
        components: times of the forward and backward pass by component, as part of ``parts``.
        operators: operators with the most time, likewise.
        flops: FLOPs of matrix products of a step.
        peak_flops: measured peak rate of this dtype in FLOP/s.
        memory: memory of a step.
        advice: sentences on what to change.
    """

    name: str
    steps: int
    precision: str
    threads: int
    tokens: float
    seconds: float
    parts: dict[str, float]
    components: dict[str, ComponentTime]
    operators: tuple[Operator, ...]
    flops: float
    peak_flops: float
    memory: MemoryUse
    advice: tuple[str, ...] = ()

    @property
    def profiled_seconds(self) -> float:
        """Seconds of a step with the profiler, and of waiting for its data."""
        return sum(self.parts.values())

    @property
    def overhead(self) -> float:
        """Time that the profiler adds, as a fraction of ``seconds``; the steps were the same."""
        return self.profiled_seconds / self.seconds - 1

    @property
    def utilization(self) -> float:
        """Share of the peak rate that a step reaches, as ``matmul_utilization`` of metrics.jsonl: without the profiler."""
        return self.flops / self.seconds / self.peak_flops

    def to_json(self) -> dict[str, Any]:
        """Return the profile as JSON-serializable data."""
        components = {
            name: asdict(each) | {"seconds": each.seconds, "utilization": self.utilization_of(name)}
            for name, each in self.components.items()
        }
        memory = asdict(self.memory) | {"predicted": asdict(self.memory.predicted) | {"total": self.memory.predicted.total}}
        operators = [each._asdict() for each in self.operators]
        sums = {"profiled_seconds": self.profiled_seconds, "overhead": self.overhead, "matmul_utilization": self.utilization}
        return asdict(self) | {"components": components, "operators": operators, "memory": memory} | sums

    def utilization_of(self, component: str) -> float | None:
        """Return the share of the peak rate that a component reaches, of the time with the profiler; None without matrix products."""
        each = self.components[component]
        return each.flops / each.seconds / self.peak_flops if each.flops and each.seconds else None


def profile_steps(bench: "StepBench", steps: int, progress: Progress = lambda done, total: None) -> StepProfile:
    """Measure training steps.

    Each batch is taken twice, without and with the profiler, so that what the profiler adds is known. Times of parts are means over the
    steps with the profiler, scaled so that they add up to the median of these steps.

    Args:
        bench: takes the steps.
        steps: number of measured steps.
        progress: called after each step.
    """
    setup, memory, times = bench.setup, bench.memory(), StepTimes.empty()
    waits, plain, profiled, flops = list[float](), list[float](), list[float](), list[float]()
    counted, n_tokens = Counter[str](), 0
    for i in range(steps):
        start = time.perf_counter()
        micro_batches = bench.next_batch()
        waits.append(time.perf_counter() - start)
        for with_profiler in (False, True) if i % 2 else (True, False):  # the second step finds the kernels that the first has built
            if with_profiler:
                profiled.append(waits[i] + bench.profiled(micro_batches, times))
            else:
                plain.append(waits[i] + bench.timed(micro_batches))
        flops.append(bench.flops)
        n_tokens += bench.n_tokens
        compiled = bool(times.forward[COMPILED])
        for micro_batch in micro_batches:
            counted.update(component_flops(setup.recipe.model, micro_batch, setup.task.flops(micro_batch), compiled))
        progress(i + 1, steps)
    scale, mean_flops, total = median(profiled) / sum(profiled), sum(flops) / steps, max(sum(counted.values()), 1)
    parts = {name: scale * times.parts[name] for name in PARTS.values()} | {WAITING: scale * sum(waits)}
    components = {
        each: ComponentTime(scale * times.forward[each], scale * times.backward[each], mean_flops * counted[each] / total)
        for each in COMPONENTS
        if times.forward[each] + times.backward[each]
    }
    found = StepProfile(
        bench.name,
        steps,
        setup.precision.name,
        torch.get_num_threads(),
        n_tokens / steps,
        median(plain),
        parts | {REST: median(profiled) - sum(parts.values())},
        components,
        tuple(Operator(each.name, scale * each.seconds, round(each.calls / steps)) for each in times.top_operators(N_OPERATORS)),
        mean_flops,
        setup.peak,
        memory,
    )
    field = "training.batch_size" if hasattr(setup.recipe.training, "batch_size") else "training.batch_tokens"
    return replace(found, advice=tuple(list_advice(found, field)))


def list_advice(found: StepProfile, batch: str = "training.batch_tokens") -> list[str]:
    """Return sentences on what to change, where the figures say so; ``batch`` is the recipe's field of the batch."""
    whole, advice = found.profiled_seconds, list[str]()
    if (share := found.parts[WAITING] / whole) > MAX_WAITING:
        advice.append(
            f"waiting for data takes {share:.0%} of a step: turn off tokenizer.bpe_dropout or augmentation, or use a faster disk or"
            " processor"
        )
    if (share := found.parts[OPTIMIZER] / whole) > MAX_OPTIMIZER:
        advice.append(f"the optimizer takes {share:.0%} of a step: raise training.grad_accum_steps and {batch}, so that it runs less often")
    low = [
        name
        for name in found.components
        if name != ATTENTION and (reached := found.utilization_of(name)) is not None and reached < LOW_UTILIZATION
    ]
    large = [name for name in low if found.components[name].seconds > MAX_OPTIMIZER * whole]
    if large:
        names = " and ".join(f"{name} {found.utilization_of(name):.0%}" for name in large)
        advice.append(f"small matrices reach a low share of the peak ({names}): raise {batch}, or the model's widths")
    return advice


def component_flops(config: ModelConfig, batch: Any, total: float, compiled: bool = False) -> dict[str, float]:
    """Divide the FLOPs of a batch among the components; what no other has belongs to the output, whose logits a task counts itself.

    Args:
        config: model configuration.
        batch: the batch.
        total: FLOPs of the forward and backward pass over it, as the task counts them.
        compiled: whether all components but the output are one, ``COMPILED``.
    """
    first = getattr(batch, "source", None)
    second = getattr(batch, "decoder_input", None) if first is None or hasattr(batch, "decoder_input") else getattr(batch, "target", None)
    lengths = [0 if text is None else text.tokens.shape[1] for text in (first, second)]
    found = Counter[str]()
    for each in list_passes(config, len(batch.sample_ids), *lengths):
        pairs = count_pair_flops(config, *each)
        found[ATTENTION] += pairs
        found[PROJECTIONS] -= pairs
        for part, flops in count_flops(config, *each).parts.items():
            if (component := _component_of_part(config, part)) != OUTPUT:
                found[component] += flops
    counted = {component: 3.0 * flops for component, flops in found.items() if flops > 0}
    if compiled:
        counted = {COMPILED: sum(counted.values())}
    return counted | {OUTPUT: max(total - sum(counted.values()), 0.0)}


def _component_of_part(config: ModelConfig, part: str) -> str:
    """Return the component of a part of ``flops.Flops``."""
    if part in ("stem", "patches"):
        return CONVOLUTIONS if part == "stem" else EMBEDDING
    stack, _, layer = part.partition(".")
    if stack not in ("encoder", "decoder"):
        return OUTPUT
    if not isinstance(config, TransformerConfig):
        return RECURRENT
    return {"attn": PROJECTIONS, "cross": PROJECTIONS, "ff": FEED_FORWARD}.get(layer, NORMS)


class StepBench:
    """Takes the steps of a run from fresh weights in this process; the first ones when it is made."""

    def __init__(self, setup: TrainingSetup, name: str) -> None:
        """Warm up.

        Args:
            setup: a new run, with one process.
            name: name of the recipe, to display.
        """
        self.name = name
        self.setup, self.device, self.flops, self.n_tokens = setup, setup.model.device, 0.0, 0
        setup.model.train()
        ranks = Ranks(SINGLE_PROCESS, ParallelConfig(), self.device)
        self.rank = RankState(setup.recipe, setup.model, setup.task, setup.precision.dtype, ranks, setup.folder.checkpoints)
        self._before = used_memory(self.device)
        self._batches: Iterator[tuple[int, Sequence[Any]]] = setup.task.loader.batches_from(0)
        for _ in range(WARM_UP_STEPS):
            self.step(self.next_batch())

    def next_batch(self) -> Sequence[Any]:
        """Return the micro-batches of the next batch."""
        with named_range(WAITING):
            return next(self._batches)[1]

    def step(self, micro_batches: Sequence[Any]) -> None:
        """Take a step."""
        n = self.rank.train_step.n_steps + 1
        rate = learning_rate(n, self.setup.recipe.training, self.setup.recipe.model.d_model)
        with named_range(STEP):
            result = self.rank.step(micro_batches, rate)
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
        self.flops, self.n_tokens = result.flops, result.n_target_tokens

    def timed(self, micro_batches: Sequence[Any]) -> float:
        """Take a step, and return its seconds."""
        start = time.perf_counter()
        self.step(micro_batches)
        return time.perf_counter() - start

    def profiled(self, micro_batches: Sequence[Any], times: StepTimes) -> float:
        """Take a step with the profiler, add its times, and return its seconds."""
        with step_ranges(self.rank.train_step), self.profiler() as profiler:
            seconds = self.timed(micro_batches)
        add_times(times, profiler.events(), on_gpu=self.device.type == "cuda")
        return seconds

    def profiler(self) -> profile:
        """Return a profiler of the operations of this process, and of its GPU."""
        gpu = [ProfilerActivity.CUDA] if self.device.type == "cuda" else []
        return profile(activities=[ProfilerActivity.CPU, *gpu], acc_events=True)

    def memory(self) -> MemoryUse:
        """Return the memory of the steps so far."""
        setup, room = self.setup, self.rank.freed.room
        measured = (peak_memory(self.device) if room is None else room.needed) - setup.memory_before
        weights = 2 * sum(p.numel() * p.element_size() for p in setup.model.parameters())
        gradients = sum(FLOAT32 * p.numel() for p in setup.model.parameters() if p.requires_grad)
        averager = self.rank.averager
        average = sum(x.numel() * x.element_size() for each in (averager.ema, *averager.snapshots.values()) for x in each.values())
        state = [x for each in self.rank.optimizer.state.values() for x in each.values() if isinstance(x, torch.Tensor)]
        optimizer = sum(x.numel() * x.element_size() for x in state)
        data = max(self._before - setup.memory_before - weights, 0)
        predicted = plan_run(self.name, setup.recipe.model, setup.recipe.training).memory
        tensors = weights + gradients + optimizer + average + data
        peak = max(measured, tensors)  # a process that freed memory before, and takes from that, grows by less than it allocates
        return MemoryUse(peak, weights, gradients, optimizer, average, data, peak - tensors, predicted)

    def write_trace(self, path: Path) -> None:
        """Write a trace of some steps, for chrome://tracing or Perfetto, atomically and durably."""
        with step_ranges(self.rank.train_step), self.profiler() as profiler:
            for _ in range(TRACED_STEPS):
                self.step(self.next_batch())
        with tempfile.TemporaryDirectory() as folder:
            exported = Path(folder) / "trace.json"
            profiler.export_chrome_trace(str(exported))

            def produce(file: BinaryIO) -> None:
                with exported.open("rb") as content:
                    shutil.copyfileobj(content, file)

            write_stream(path, produce)
