"""The budget of a step: parts that add up, components that are what they cost, and advice where the figures say so."""

import time
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor
from torch.profiler import profile

from tests.models.test_compile import INDUCTOR, TRACER
from tests.tiers import every, tiers
from tests.training.test_activation_checkpointing import CASES, DECODER, SEQ2SEQ, SGD, TRAINING, batch_of
from transom.checkpoints.run_folder import RunFolder
from transom.config.model import AnyModel
from transom.layers.attention import Attention
from transom.layers.block import Block
from transom.layers.observe import has_hooks
from transom.models.base import Network
from transom.models.build import build_model
from transom.planning.flops import count_flops
from transom.planning.training_bytes import TrainingBytes
from transom.tasks.task import build_training_setup
from transom.training.activation_checkpointing import checkpoint_activations
from transom.training.compilation import compile_training_passes
from transom.training.objectives.objective import CrossEntropy
from transom.training.optimizer import build_optimizer
from transom.training.step_profile import (
    REST,
    WAITING,
    ComponentTime,
    MemoryUse,
    StepBench,
    StepProfile,
    component_flops,
    list_advice,
    profile_steps,
)
from transom.training.step_ranges import (
    ATTENTION,
    BACKWARD,
    CLIPPING,
    COMPILED,
    EMBEDDING,
    FEED_FORWARD,
    FORWARD,
    NORMS,
    OPTIMIZER,
    OUTPUT,
    PROJECTIONS,
    RECURRENT,
    STEP,
    StepTimes,
    add_times,
    named_range,
    step_ranges,
)
from transom.training.train_step import TrainStep

SPIN = 0.2


def spin(seconds: float = SPIN) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


class Slow(torch.autograd.Function):
    """The identity, whose backward pass takes ``SPIN`` seconds."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        spin()
        return gradient


def step_of(fields: dict[str, Any], checkpointed: bool = False) -> TrainStep:
    torch.manual_seed(1)
    model: Network = build_model(TypeAdapter(AnyModel).validate_python(fields)).train()
    if checkpointed:
        checkpoint_activations(model)
    return TrainStep(model, build_optimizer(model, SGD), TRAINING, torch.float32, CrossEntropy(0.1))


def batches(fields: dict[str, Any]) -> list[Any]:
    parts = [batch_of(fields["kind"], [0, 1, 2]), batch_of(fields["kind"], [3, 4, 5])]
    for each in parts:
        if hasattr(each, "pixels"):
            vars(each)["pixels"] = each.pixels.float()
    return parts


def times_of(train_step: TrainStep, parts: list[Any]) -> tuple[StepTimes, float]:
    """Return the times of a step, and the duration of its range."""
    train_step.step(parts, 0.1)
    with step_ranges(train_step), profile() as profiler, named_range(STEP):
        train_step.step(parts, 0.1)
    times, events = StepTimes.empty(), profiler.events()
    add_times(times, events)
    (whole,) = [event for event in events if event.name == f"transom: {STEP}"]
    return times, whole.cpu_time_total * 1e-6


@pytest.mark.parametrize("name", every(8, CASES))
def test_parts_and_components_add_up_in_every_family(name: str) -> None:
    fields = CASES[name]
    train_step = step_of(fields)
    times, whole = times_of(train_step, batches(fields))
    assert sum(times.parts.values()) == pytest.approx(whole, rel=1e-6)
    assert sum(times.forward.values()) == pytest.approx(times.parts[FORWARD], rel=1e-9)
    assert sum(times.backward.values()) == pytest.approx(times.parts[BACKWARD], rel=1e-9)
    assert all(times.parts[part] > 0 for part in (FORWARD, BACKWARD, CLIPPING, OPTIMIZER))
    recurrent = fields["kind"].startswith("recurrent")
    expected = {RECURRENT, OUTPUT} if recurrent else {EMBEDDING, PROJECTIONS, ATTENTION, FEED_FORWARD, NORMS, OUTPUT}
    assert all(times.forward[each] > 0 and times.backward[each] > 0 for each in expected)
    assert recurrent or not times.forward[RECURRENT]
    assert "logit_factors" not in vars(train_step.model) and "_forward" not in vars(train_step)


@pytest.mark.long
@pytest.mark.compile
@pytest.mark.filterwarnings(TRACER, INDUCTOR)
def test_compiled_passes_are_one_component() -> None:
    train_step = step_of(DECODER)
    compile_training_passes(train_step.model, backend="eager")
    times, whole = times_of(train_step, batches(DECODER))
    for found in (times.forward, times.backward):
        assert {each for each, seconds in found.items() if seconds} == {COMPILED, OUTPUT} and found[COMPILED] > found[OUTPUT]
    assert sum(times.parts.values()) == pytest.approx(whole, rel=1e-6)


def test_passes_whose_compilation_was_given_up_have_components() -> None:
    train_step = step_of(DECODER)
    train_step.model.logit_factors = train_step.model.logit_factors  # type: ignore[method-assign]
    times, _ = times_of(train_step, batches(DECODER))
    assert times.forward[FEED_FORWARD] > 0 and not times.forward[COMPILED]


@pytest.mark.parametrize("checkpointed", tiers([False, True], long=[False, True]))
def test_a_known_cost_is_attributed_to_its_module(checkpointed: bool) -> None:
    """Without operations of its own, in the forward pass; by a node of autograd, in the backward pass."""
    train_step = step_of(DECODER, checkpointed)
    n, blocks = 2, [module for module in train_step.model.modules() if isinstance(module, Block)]
    blocks[0].get_submodule("ff").register_forward_pre_hook(lambda *_: spin())
    blocks[1].attn.q.register_forward_hook(lambda module, args, output: Slow.apply(output))
    times, _ = times_of(train_step, batches(DECODER))
    assert n * SPIN < times.forward[FEED_FORWARD] < (n + 1) * SPIN
    assert n * SPIN < times.backward[PROJECTIONS] < (n + 1) * SPIN
    again = n * SPIN if checkpointed else 0.0
    assert again < times.backward[FEED_FORWARD] < again + SPIN
    others = [times.forward[each] for each in (ATTENTION, PROJECTIONS, NORMS, EMBEDDING)] + [times.backward[ATTENTION]]
    assert max(others) < SPIN


def test_ranges_leave_projections_together() -> None:
    """A hook of a projection would send it alone to the kernels."""
    train_step = step_of(DECODER)
    with step_ranges(train_step):
        layers = [each for module in train_step.model.modules() if isinstance(module, Attention) for each in (module.q, module.k, module.v)]
        assert layers and not any(map(has_hooks, layers))


def test_operators_are_counted_once() -> None:
    times, _ = times_of(step_of(SEQ2SEQ), batches(SEQ2SEQ))
    top = times.top_operators(10)
    assert len(top) == 10 and all(each.calls > 0 and each.name.startswith("aten::") for each in top)
    assert sum(times.operators.values()) < sum(times.parts.values())


@pytest.mark.parametrize("name", ["seq2seq", "decoder", "vit", "classifier", "embedder", "recurrent"])
def test_the_operations_of_components_are_those_of_the_model(name: str) -> None:
    fields = CASES[name]
    config, each = TypeAdapter(AnyModel).validate_python(fields), batches(fields)[0]
    total = 1e9
    found = component_flops(config, each, total)
    assert sum(found.values()) == pytest.approx(total)
    compiled = component_flops(config, each, total, compiled=True)
    assert compiled == pytest.approx({COMPILED: total - found[OUTPUT], OUTPUT: found[OUTPUT]})
    if name == "decoder":
        parts = count_flops(config, 3, 0, each.decoder_input.tokens.shape[1]).parts
        assert found[FEED_FORWARD] == 3 * parts["decoder.ff"] and found[PROJECTIONS] + found[ATTENTION] == 3 * parts["decoder.attn"]


BYTES = TrainingBytes(1, 1, 1, 1, 0, 1)
PROFILE = StepProfile(
    "mine",
    2,
    "fp32",
    1,
    100.0,
    0.8,
    {FORWARD: 0.4, BACKWARD: 0.5, CLIPPING: 0.02, OPTIMIZER: 0.05, WAITING: 0.01, REST: 0.02},
    {FEED_FORWARD: ComponentTime(0.2, 0.3, 5e9), ATTENTION: ComponentTime(0.2, 0.2, 1e6)},
    (),
    5e9,
    2e10,
    MemoryUse(9, 2, 1, 2, 0, 1, 3, BYTES),
)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, ""),
        ({"parts": PROFILE.parts | {WAITING: 0.1}}, "waiting for data takes 9% of a step: turn off tokenizer.bpe_dropout"),
        ({"parts": PROFILE.parts | {OPTIMIZER: 0.3}}, "the optimizer takes 24% of a step: raise training.grad_accum_steps"),
        ({"peak_flops": 2e11}, "small matrices reach a low share of the peak (feed-forward 5%): raise training.batch_tokens"),
    ],
)
def test_advice_follows_from_the_figures(changed: dict[str, Any], expected: str) -> None:
    (found,) = list_advice(replace(PROFILE, **changed)) or [""]
    assert found.startswith(expected) and bool(found) == bool(expected)


class FakeBench:
    """Steps that take given seconds, in place of ``StepBench``."""

    name, flops, n_tokens = "mine", 6e9, 100

    def __init__(self, plain: list[float], profiled: list[float]) -> None:
        self._plain, self._profiled, self._batch = iter(plain), iter(profiled), batches(DECODER)[:1]
        config = TypeAdapter(AnyModel).validate_python(DECODER)
        recipe = SimpleNamespace(model=config, training=TRAINING)
        self.setup = SimpleNamespace(
            recipe=recipe, task=SimpleNamespace(flops=lambda batch: 6e9), precision=SimpleNamespace(name="fp32"), peak=1e11
        )

    def memory(self) -> MemoryUse:
        return PROFILE.memory

    def next_batch(self) -> list[Any]:
        return self._batch

    def timed(self, batch: list[Any]) -> float:
        return next(self._plain)

    def profiled(self, batch: list[Any], times: StepTimes) -> float:
        seconds = next(self._profiled)
        times.parts[FORWARD] += 0.9 * seconds
        times.forward[FEED_FORWARD] += 0.9 * seconds
        return seconds


def test_all_figures_follow_from_two_medians() -> None:
    """A step that stalls changes no figure."""
    calls = list[tuple[int, int]]()
    bench: Any = FakeBench([0.5, 0.4, 9.0], [0.6, 8.0, 0.5])
    found = profile_steps(bench, 3, lambda done, total: calls.append((done, total)))
    assert calls == [(1, 3), (2, 3), (3, 3)]
    about = partial(pytest.approx, rel=1e-3)
    assert found.seconds == about(0.5) and found.profiled_seconds == about(0.6) and found.overhead == about(0.2)
    assert found.parts[FORWARD] == about(0.54) == found.components[FEED_FORWARD].seconds
    assert found.utilization == about(6e9 / 0.5 / 1e11) and sum(found.parts.values()) == pytest.approx(found.profiled_seconds)
    assert found.to_json()["overhead"] == found.overhead


@pytest.mark.long
def test_a_run_is_profiled_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.training.test_train_loop import recipe

    monkeypatch.setattr("transom.planning.hardware.BUDGET", 0.01)
    with RunFolder.create(tmp_path / "run") as folder:
        bench = StepBench(build_training_setup(recipe(precision="fp32", average="ema"), Path(), folder), "mine")
        found = profile_steps(bench, 3)
        bench.write_trace(tmp_path / "trace.json")
    assert sum(found.parts.values()) == pytest.approx(found.profiled_seconds) and found.parts[REST] > 0
    assert found.parts[REST] < 0.5 * found.profiled_seconds and found.flops > 0 and found.tokens > 0
    m = found.memory
    assert m.weights == m.predicted.weights + m.predicted.validation_copy and m.optimizer >= m.predicted.optimizer
    assert m.peak == m.weights + m.gradients + m.optimizer + m.average + m.data + m.activations
    assert m.average == m.predicted.average > 0
    assert sum(each.flops for each in found.components.values()) == pytest.approx(found.flops)
    text = (tmp_path / "trace.json").read_text()
    assert "transom: component feed-forward" in text and "transom: backward" in text and "transom: waiting for data" in text
    value: Counter[str] = Counter(found.to_json())
    assert {"parts", "components", "operators", "memory", "advice", "matmul_utilization"} <= value.keys()
