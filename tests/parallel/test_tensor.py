"""Tensor and sequence parallelism against one process."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, distributed
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from tests.models.combinations import ENCODERS, FAMILIES, SET_ENCODERS, SET_TEXTS, SET_WRITERS, batch_for, described
from tests.parallel.equality import CROSS_ENTROPY, StepGradients, assert_equal, backward, build_double, gradients_of, single_process, whole
from tests.tiers import every
from transom.config.adapter import LoraConfig
from transom.config.parallel import ParallelConfig
from transom.config.training import AdamWConfig
from transom.data.batch import (
    Batch,
    ImageBatch,
    LabeledTextBatch,
    LanguageBatch,
    MixupLabels,
    MultiLabelTextBatch,
    PaddedSequences,
    take_rows,
)
from transom.layers.stack import Stack
from transom.models.base import Network
from transom.parallel.axes.tensor import apply_tensor_parallel
from transom.parallel.gradients import Gradients, partial_axes
from transom.parallel.mesh import Ranks
from transom.parallel.processes.collectives import World
from transom.parallel.processes.local_ranks import run_on_ranks
from transom.training.objectives.mixup import MixupCrossEntropy
from transom.training.objectives.multi_label import BinaryCrossEntropy
from transom.training.objectives.objective import Objective
from transom.training.objectives.r_drop import RDrop
from transom.training.optimizer import build_optimizer


class Case(NamedTuple):
    """A model, a batch, an objective and an adapter."""

    fields: dict[str, Any]
    batch: Batch
    objective: Objective = CROSS_ENTROPY
    adapter: LoraConfig | None = None


def fits(fields: dict[str, Any]) -> bool:
    """Tell whether tensor parallelism supports a combination."""
    return fields.get("norm") != "batchnorm" and fields.get("depth", "full") == "full"


def cases_of(combinations: Sequence[dict[str, Any]]) -> list[Case]:
    """Return the combinations that fit, without a capacity of experts, for which the tokens of all rows compete."""
    cases = []
    for fields in filter(fits, combinations):
        network = fields.get("feed_forward", {})
        if network.get("kind") == "moe":
            fields = fields | {"feed_forward": network | {"capacity_factor": "none"}}
        cases.append(Case(fields, batch_for(described(fields))))
    return cases


def _step(rank: int, layout: ParallelConfig, cases: list[Case]) -> list[StepGradients]:
    """Return, on rank 0, loss and gradients of each case, all ranks together."""
    n, results = layout.tensor, []
    world = World(rank, n)
    ranks = Ranks(world, layout, torch.device("cpu"))
    for fields, batch, objective, adapter in cases:
        model = build_double(described(fields), adapter)
        apply_tensor_parallel(model, ranks.mesh)
        loss = _sum(backward(model, batch, (rank, n), objective, world))
        Gradients(model, ranks).all_reduce()
        results.append(StepGradients(loss, gradients_of(model)))
    return results if rank == 0 else []


def _sum(loss: float) -> float:
    total = torch.tensor(loss, dtype=torch.float64)
    distributed.all_reduce(total)
    return float(total)


def assert_equals_one_process(n: int, cases: list[Case]) -> None:
    """Assert that loss and gradients of ``n`` ranks equal those of one process."""
    results = run_on_ranks(n, _step, ParallelConfig(tensor=n), cases)[0]
    for (fields, batch, objective, adapter), found in zip(cases, results, strict=True):
        assert_equal(found, single_process(described(fields), batch, objective, adapter), fields)


@pytest.mark.long
def test_components_on_three_ranks() -> None:
    """Every component, with 6, 3 and 1 key heads and rows of four and five tokens."""
    assert_equals_one_process(3, cases_of(SET_TEXTS[:14] + SET_TEXTS[14::3]))


PACKED = PaddedSequences(
    torch.tensor([[1, 5, 8, 1, 7, 3, 4], [1, 3, 1, 6, 2, 0, 0]]),
    torch.tensor([[0, 1, 2, 0, 1, 2, 3], [0, 1, 0, 1, 2, 0, 0]]),
    torch.tensor([[1, 1, 1, 2, 2, 2, 2], [1, 1, 2, 2, 2, 0, 0]]),
    torch.tensor([7, 5]),
)
"""Two texts per row, and padding."""

SIZES: dict[str, Any] = {"d_model": 8, "n_heads": 4, "n_kv_heads": 2, "d_ff": 10, "max_seq_len": 16}
LLAMA = SIZES | FAMILIES[3] | {"norm_placement": "pre", "norm": "rmsnorm", "position": "rotary", "feed_forward": "swiglu"}
CLASSIFIER = SIZES | ENCODERS[2]
IMAGES = {name: n for name, n in SIZES.items() if name != "max_seq_len"} | {
    "kind": "vision-transformer",
    "image_size": 4,
    "patch_size": 2,
    "n_layers": 1,
    "classes": ["a", "b", "c"],
    "channels": 1,
}
LANGUAGE = LanguageBatch(PACKED, torch.tensor([[5, 8, 2, 7, 3, 4, 2], [3, 2, 6, 2, 2, 0, 0]]), (0, 1))
SHORT = PaddedSequences.pad([[1, 2]])


def image_batch(mixup: bool) -> ImageBatch:
    """Build a batch of three images."""
    pixels = torch.rand(3, 1, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    mixed = MixupLabels(torch.tensor([1, 0, 2]), torch.tensor([0.2, 0.7, 0.4]))
    return ImageBatch(pixels, torch.tensor([0, 2, 1]), (0, 1, 2), mixed if mixup else None)


CASES = [
    Case(LLAMA, LANGUAGE),
    Case(LLAMA, LANGUAGE, RDrop(0.1, 0.5)),
    Case(LLAMA | {"attention": {"sinks": True}, "position": "relative", "n_kv_heads": 1}, LANGUAGE),
    Case(LLAMA | {"n_heads": 2, "position": "alibi"}, LANGUAGE),  # attention is whole: four ranks cannot share two heads
    Case(SIZES | FAMILIES[0] | {"position": "alibi", "norm_placement": "post"}, batch_for(described(SIZES | FAMILIES[0]))),
    Case(LLAMA, LANGUAGE, adapter=LoraConfig(rank=2, target_modules=("attn.q", "attn.k", "attn.o", "ff.gate", "ff.down"), dropout=0.1)),
    Case(LLAMA, LanguageBatch(SHORT, SHORT.tokens, (0,))),  # two ranks have no token
    Case(CLASSIFIER, LabeledTextBatch(SHORT, torch.tensor([2]), (0,))),  # three ranks have no label
    Case(
        CLASSIFIER | {"multi_label": True},
        MultiLabelTextBatch(PaddedSequences.pad([[1, 2, 7], [4]]), torch.tensor([[1.0, 0, 1], [0, 0, 1]]), (0, 1)),
        BinaryCrossEntropy(0.1),
    ),
    Case(IMAGES, image_batch(False)),
    Case(IMAGES | {"pooling": "mean", "position": "learned"}, image_batch(True), MixupCrossEntropy(0.1)),
]


@pytest.mark.parametrize("n", every(2, [2, 4]))
def test_batches_and_objectives(n: int) -> None:
    """Packed rows, padding, ranks without tokens or labels, and losses of several kinds."""
    assert_equals_one_process(n, CASES)


def _updated(model: Network) -> dict[str, Tensor]:
    """Take a step of fused AdamW; return the whole weights by name."""
    optimizer = build_optimizer(model, AdamWConfig())
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    optimizer.step()
    return {name: whole(p) for name, p in model.named_parameters()}


def _step_of_adamw(rank: int, layout: ParallelConfig, case: Case) -> tuple[StepGradients, dict[str, Tensor], list[Any]]:
    ranks = Ranks(World(rank, layout.n_processes), layout, torch.device("cpu"))
    mesh = ranks.mesh
    model = build_double(described(case.fields))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    apply_tensor_parallel(model, mesh)
    _shard(model, mesh["shard"])  # also without shards: a fused optimizer takes tensors of one type only
    for name, parameter in model.named_parameters():
        assert torch.equal(whole(parameter), before[name])
        if isinstance(parameter, DTensor):
            again = distribute_tensor(before[name], parameter.device_mesh, parameter.placements, src_data_rank=None)
            assert torch.equal(again.to_local(), parameter.to_local()), "a whole tensor is split without communication"
    axes = partial_axes(model, ranks)
    names = "decoder.norm.weight", "decoder.blocks.0.attn.q.weight", "decoder.blocks.0.attn.o.weight"
    local = dict(model.named_parameters())
    sizes = [(axes[name], (p.to_local() if isinstance(p, DTensor) else p).numel()) for name in names for p in [local[name]]]
    rows = slice(layout.batch_part(rank), layout.batch_part(rank) + 1) if layout.shard > 1 else slice(None)
    part = mesh.get_local_rank("tensor"), layout.tensor
    loss = _sum(backward(model, take_rows(case.batch, rows), part, n_target_tokens=case.batch.n_target_tokens))
    Gradients(model, ranks).all_reduce()
    return StepGradients(loss, gradients_of(model)), _updated(model), sizes


def _shard(model: Network, mesh: DeviceMesh) -> None:
    """Shard the model as FSDP does, each block on its own; gradients are summed."""
    for stack in (m for m in model.modules() if isinstance(m, Stack)):
        for block in stack.blocks:
            fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
    register_fsdp_forward_method(model, "logit_factors")


@pytest.mark.parametrize(("n_shards", "tied"), [(1, False), (2, True)])
def test_step_of_adamw_with_and_without_shards(n_shards: int, tied: bool) -> None:
    layout = ParallelConfig(shard=n_shards, tensor=2)
    case = Case(LLAMA | {"tie_embeddings": tied}, LANGUAGE)
    model = build_double(described(case.fields))
    expected = StepGradients(backward(model, case.batch), gradients_of(model))
    weights = _updated(model)
    for found, found_weights, sizes in run_on_ranks(layout.n_processes, _step_of_adamw, layout, case):
        assert_equal(found, expected, layout)
        for name, weight in weights.items():
            torch.testing.assert_close(found_weights[name], weight, rtol=0, atol=1e-9, msg=name)
        norm, *matrices = sizes
        assert norm == (("tensor",), 8 // n_shards)
        assert matrices == [((), n // n_shards) for n in (32, 32)]


@pytest.mark.soak
@pytest.mark.parametrize("n", [2, 3, 8])
def test_all_combinations(n: int) -> None:
    heads = {"n_heads": 8, "n_kv_heads": 4, "d_model": 16, "d_head": 4, "d_value": 2, "decoder_n_heads": 8} if n == 8 else {}
    sets = [fields | {name: value for name, value in heads.items() if name in fields} for fields in SET_WRITERS + SET_ENCODERS]
    assert_equals_one_process(n, cases_of(sets))
