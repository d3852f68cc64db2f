"""Generated layouts, products of all axes on 2 to 8 ranks, and some of 16 to 64 ranks.

Loss, norm and gradients of a training step are those of one process, in float64 and with dropout.
"""

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.parallel.equality import TOLERANCE, build_double
from tests.parallel.test_layouts import by_name
from tests.parallel.test_pipeline import TRANSLATOR, draw_batch
from tests.tiers import tiers
from transom.config.parallel import ParallelConfig
from transom.config.recipe import parse_model_config
from transom.config.training import SgdConfig, TrainingConfig
from transom.data.batch import Batch, take_rows
from transom.parallel.layouts import apply_layout, gather_whole
from transom.parallel.mesh import Ranks
from transom.parallel.processes.collectives import SINGLE_PROCESS, World
from transom.parallel.processes.local_ranks import run_on_ranks
from transom.planning.layout import layout_problems
from transom.training.activation_checkpointing import checkpoint_activations
from transom.training.objectives.objective import CrossEntropy
from transom.training.optimizer import build_optimizer, split_groups_by_mesh
from transom.training.train_step import TrainStep

SIZES: dict[str, Any] = {"d_model": 16, "n_heads": 8, "d_ff": 24}
TEXT = SIZES | {"max_seq_len": 16, "n_kv_heads": 2}
BALANCING = {"kind": "aux-loss", "aux_loss_coef": 0.7}
MIXTURE = {"kind": "moe", "n_experts": 4, "d_expert": 8, "z_loss_coef": 0.3, "load_balancing": BALANCING}
MODELS: dict[str, dict[str, Any]] = {
    "translator": TEXT | TRANSLATOR | {"tie_embeddings": "all"},
    "decoder": TEXT | {"kind": "decoder", "n_layers": 4, "vocab_size": 9, "tie_embeddings": True},
    "relative": TEXT | TRANSLATOR | {"position": "relative", "tie_embeddings": "all"},
    "mixture": TEXT | {"kind": "decoder", "n_layers": 2, "vocab_size": 9, "feed_forward": MIXTURE},
    "encoder": TEXT | {"kind": "encoder", "n_layers": 3, "vocab_size": 9, "tie_embeddings": True, "head_bias": True},
    "embedder": TEXT | {"kind": "text-embedder", "n_layers": 2, "vocab_size": 9},
    "images": SIZES | {"kind": "vision-transformer", "n_layers": 3, "image_size": 8, "channels": 1, "classes": ["a", "b", "c"]},
}
N_ROWS, LENGTH = 9, 7
TRAINING = TrainingConfig(optimizer=SgdConfig(), max_grad_norm=None)


def generate_layouts(n: int) -> list[tuple[str, dict[str, int]]]:
    """Draw models with layouts of 2 to 8 processes that fit them; each axis occurs, alone and in products."""
    draw = random.Random(1)
    found: list[tuple[str, dict[str, int]]] = [("mixture", {axis: 2}) for axis in ParallelConfig.AXES]
    found.append(("relative", {"tensor": 2, "pipeline": 2}))
    while len(found) < n:
        name = draw.choice([each for each in MODELS if each != "embedder"])  # its pairs are each other's negatives
        sizes = {axis: draw.choice([1, 1, 1, 2, 2, 3, 4]) for axis in ParallelConfig.AXES}
        layout, config = ParallelConfig(**sizes), parse_model_config(MODELS[name])
        case = name, {axis: size for axis, size in sizes.items() if size > 1}
        if 2 <= layout.n_processes <= 8 and not layout_problems(config, layout) and case not in found:
            found.append(case)
    return found


CASES = generate_layouts(48)
CHECKPOINTED = [*CASES[:7], ("embedder", {"tensor": 2}), ("translator", {"context": 2, "pipeline": 2}), *CASES[7:20]]
"""Layouts in which blocks are computed again in the backward pass; in a pipeline after those of other micro-batches."""

LARGE: list[tuple[str, dict[str, int]]] = [
    ("translator", {"data": 2, "tensor": 4, "pipeline": 2}),
    ("translator", {"tensor": 8, "context": 4, "pipeline": 2}),
    ("decoder", {"data": 2, "shard": 2, "tensor": 4, "pipeline": 4}),
    ("encoder", {"data": 2, "shard": 2, "tensor": 2, "context": 2, "pipeline": 3}),
    ("images", {"data": 4, "tensor": 8, "pipeline": 2}),
    ("mixture", {"data": 2, "shard": 2, "context": 2, "expert": 4}),
    ("mixture", dict.fromkeys(ParallelConfig.AXES, 2)),
]
"""Layouts of 16 to 64 ranks."""


def whole_batch(kind: str) -> Batch:
    return draw_batch(kind, N_ROWS, LENGTH, torch.Generator().manual_seed(5))


def take_step(rank: int, name: str, layout: ParallelConfig, checkpointed: bool = False) -> tuple[float, float, dict[str, Tensor]]:
    """Return loss and norm of a step, and on rank 0 the gradients."""
    config = parse_model_config(MODELS[name])
    world = World(rank, layout.n_processes) if layout.n_processes > 1 else SINGLE_PROCESS
    ranks, model, batch = Ranks(world, layout, torch.device("cpu")), build_double(config).train(), whole_batch(config.kind)
    if checkpointed:
        checkpoint_activations(model, layout)
    pipeline = apply_layout(model, ranks)
    optimizer, filler = build_optimizer(model, TRAINING.optimizer), take_rows(batch, slice(0, 1))
    split_groups_by_mesh(optimizer)
    step = TrainStep(model, optimizer, TRAINING, torch.float32, CrossEntropy(0.1), ranks, None, lambda: filler, pipeline)
    gradients: dict[str, Tensor] = {}

    def keep() -> None:
        gradients.update({name: p.grad for name, p in model.named_parameters() if p.grad is not None})

    optimizer.register_step_pre_hook(lambda *_: keep())
    part = layout.batch_part(rank)
    own: Sequence[Batch] = [take_rows(batch, slice(part, None, layout.n_batch_parts))] if part < N_ROWS else []
    result = step.step(own, 0.0)
    return result.loss, result.grad_norm, gather_whole(model, gradients, ranks)


def name_of(case: tuple[str, dict[str, int]]) -> str:
    return f"{case[0]}-{by_name(case[1])}"


def test_every_axis_is_drawn_alone_and_in_products() -> None:
    layouts = [layout for _, layout in CASES]
    for axis in ParallelConfig.AXES:
        assert any([*layout] == [axis] for layout in layouts) and any(axis in layout and len(layout) > 1 for layout in layouts)


@pytest.mark.parametrize("case", tiers([*CASES, *LARGE], long=CASES[:7]), ids=name_of)
def test_a_step_of_a_generated_layout_is_that_of_one_process(case: tuple[str, dict[str, int]]) -> None:
    check_layout_step(*case)


@pytest.mark.parametrize("case", tiers(CHECKPOINTED, long=CHECKPOINTED[:9]), ids=name_of)
def test_so_is_one_that_computes_its_blocks_again(case: tuple[str, dict[str, int]]) -> None:
    check_layout_step(*case, checkpointed=True)


def check_layout_step(name: str, sizes: dict[str, int], checkpointed: bool = False) -> None:
    layout = ParallelConfig(**sizes)
    loss, norm, expected = take_step(0, name, ParallelConfig())
    results = run_on_ranks(layout.n_processes, take_step, name, layout, checkpointed)
    for found_loss, found_norm, _ in results:
        assert abs(found_loss - loss) <= TOLERANCE * loss and abs(found_norm - norm) <= TOLERANCE
    gradients = results[0][2]
    assert gradients.keys() == expected.keys()
    for each, gradient in expected.items():
        assert float((gradients[each] - gradient).abs().max()) <= TOLERANCE, each
