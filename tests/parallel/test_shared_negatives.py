"""Text embedders on parts of a batch: each text has the right texts of all parts as negatives, as in one process, in float64."""

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, distributed

from tests.parallel.equality import TOLERANCE, build_double
from tests.parallel.test_layouts import by_name
from tests.parallel.test_pipeline import draw_batch
from tests.parallel.test_products import MIXTURE, TEXT, TRAINING
from tests.tiers import tiers
from tests.training.test_fault_checks import steps
from tests.training.test_keyed_dropout import ENCODER
from transom.config.parallel import ParallelConfig
from transom.config.recipe import parse_model_config
from transom.data.batch import take_rows
from transom.data.sampler import MicroBatching
from transom.parallel.layouts import apply_layout, gather_whole
from transom.parallel.mesh import Ranks
from transom.parallel.processes.collectives import SINGLE_PROCESS, World
from transom.parallel.processes.local_ranks import run_on_ranks
from transom.planning.communication import MicroBatches, NumberBytes, list_collectives
from transom.planning.layout import layout_problems
from transom.planning.stages import count_stage_parameters, divide_stages
from transom.training.objectives.objective import CrossEntropy
from transom.training.optimizer import build_optimizer, split_groups_by_mesh
from transom.training.train_step import TrainStep

EMBEDDER = TEXT | {"kind": "text-embedder", "n_layers": 2, "vocab_size": 9, "temperature": 0.5}
LENGTH = 7


class Case(NamedTuple):
    """Number of rows of a batch, and of micro-batches."""

    n_rows: int
    grad_accum_steps: int


class Step(NamedTuple):
    """Loss, norm, and on rank 0 the gradients of a step, and the bytes of all tensors that were gathered in it, and scattered."""

    loss: float
    norm: float
    gradients: dict[str, Tensor]
    gathered: list[int]
    scattered: list[int]


CASES = [Case(9, 1), Case(9, 4), Case(5, 2), Case(1, 2)]
"""Rows that neither parts nor micro-batches divide, and fewer rows than parts."""

ACCUMULATED = [case for case in CASES if case.grad_accum_steps > 1]
"""Cases of a pipeline of two stages, whose micro-batches are not split."""

LAYOUTS: list[dict[str, int]] = [
    {"data": 2},
    {"shard": 2},
    {"data": 3},
    {"data": 2, "shard": 2},
    {"data": 2, "tensor": 2},
    {"shard": 2, "context": 2},
    {"data": 2, "pipeline": 2},
    {"shard": 2, "pipeline": 2},
    {"expert": 2},
    {"data": 3, "expert": 2},
    {"data": 2, "shard": 2, "tensor": 2, "pipeline": 2},
]


def model_of(layout: ParallelConfig) -> dict[str, Any]:
    return EMBEDDER | ({"feed_forward": MIXTURE} if layout.expert > 1 else {})


def take_steps(rank: int, fields: dict[str, Any], layout: ParallelConfig, cases: list[Case]) -> list[Step]:
    """Take a step of each case from the same weights."""
    config = parse_model_config(fields)
    world = World(rank, layout.n_processes) if layout.n_processes > 1 else SINGLE_PROCESS
    ranks, model = Ranks(world, layout, torch.device("cpu")), build_double(config).train()
    pipeline = apply_layout(model, ranks)
    optimizer, gradients, found = build_optimizer(model, TRAINING.optimizer), dict[str, Tensor](), list[Step]()
    split_groups_by_mesh(optimizer)

    def keep() -> None:
        gradients.update({name: p.grad for name, p in model.named_parameters() if p.grad is not None})

    optimizer.register_step_pre_hook(lambda *_: keep())
    part, n_parts = layout.batch_part(rank), layout.n_batch_parts
    for n_rows, grad_accum_steps in cases:
        batch = draw_batch(config.kind, n_rows, LENGTH, torch.Generator().manual_seed(5))
        filler = take_rows(batch, slice(0, 1))
        split = MicroBatching(grad_accum_steps, part, n_parts, aligned=True).split(np.arange(n_rows))
        own = [take_rows(batch, slice(int(rows[0]), int(rows[-1]) + 1, n_parts)) for rows in split]
        step = TrainStep(model, optimizer, TRAINING, torch.float32, CrossEntropy(0.1), ranks, None, lambda filler=filler: filler, pipeline)
        with pytest.MonkeyPatch.context() as patch:
            sizes = [count_bytes(patch, name) for name in ("all_gather_single", "reduce_scatter_single")]
            result = step.step(own, 0.0)
        found.append(Step(result.loss, result.grad_norm, gather_whole(model, gradients, ranks), *sizes))
    return found


def count_bytes(patch: pytest.MonkeyPatch, name: str) -> list[int]:
    """Return a list to which each call of a collective adds the bytes of its whole tensor."""
    sizes, collective = list[int](), getattr(distributed, name)

    def counted(*args: Any, **options: Any) -> Any:
        sizes.append(max(x.nbytes for x in (*args, *options.values()) if isinstance(x, Tensor)))
        return collective(*args, **options)

    patch.setattr(distributed, name, counted)
    return sizes


@pytest.mark.parametrize("layout", [LAYOUTS[0], *tiers(LAYOUTS[1:], long=LAYOUTS[1:7])], ids=by_name)
def test_steps_of_a_layout_are_those_of_one_process(layout: dict[str, int]) -> None:
    axes = ParallelConfig(**layout)
    fields, cases = model_of(axes), CASES if axes.pipeline == 1 else ACCUMULATED
    assert not layout_problems(parse_model_config(fields), axes)
    ranks, alone = run_on_ranks(axes.n_processes, take_steps, fields, axes, cases), take_steps(0, fields, ParallelConfig(), cases)
    for i, expected in enumerate(alone):
        for found in ranks:
            assert abs(found[i].loss - expected.loss) <= TOLERANCE and abs(found[i].norm - expected.norm) <= TOLERANCE, cases[i]
        gradients = ranks[0][i].gradients
        assert gradients.keys() == expected.gradients.keys()
        for name, gradient in expected.gradients.items():
            assert float((gradients[name] - gradient).abs().max()) <= TOLERANCE, (cases[i], name)
    if [*layout] == ["data"]:
        assert_predicted_bytes(axes, ranks[0][0])


def assert_predicted_bytes(layout: ParallelConfig, step: Step) -> None:
    """Assert that the first case sends what ``transom rehearse`` lists, in numbers of twice the size; a part has at most so many rows."""
    config, n_rows = parse_model_config(EMBEDDER), -(-CASES[0].n_rows // layout.data)
    (stage,), micro = divide_stages(config, 1), MicroBatches(1, n_rows, LENGTH, LENGTH)
    listed = list_collectives(config, layout, stage, count_stage_parameters(config, layout, stage), micro, NumberBytes())
    for kind, sizes in (("all-gather", step.gathered), ("reduce-scatter", step.scattered)):
        assert [2 * each.n_bytes for each in listed if each.kind == kind] == sizes


@pytest.mark.long
@pytest.mark.parametrize("fault", ["none", "reduced"])
def test_fault_checks_take_part_in_the_collectives(fault: str) -> None:
    """Gradients are computed again by all ranks, and no rank computes that of another alone, which would wait for ever."""
    fields = ENCODER | {"kind": "text-embedder", "max_seq_len": 32}
    found = run_on_ranks(2, steps, {"data": 2}, fault, 1, fields)
    assert len({*found}) == 1 and ("other bits on rank 1: " in found[0] if fault == "reduced" else not found[0])
