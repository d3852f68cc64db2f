"""Experts split over ranks: loss, gradients, balance and names are those of one process."""

import copy
import dataclasses
import itertools
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from transom.config.model import AnyModel
from transom.config.moe import MoeConfig
from transom.config.parallel import ParallelConfig
from transom.config.training import AdamConfig
from transom.data.batch import ImageBatch, LanguageBatch, PaddedSequences, split_rows, translation_batch
from transom.layers.block import Block
from transom.layers.feed_forward import build_feed_forward
from transom.layers.mixture_of_experts import PAD_MULTIPLE, MixtureOfExperts
from transom.models.base import Network
from transom.models.build import build_model
from transom.parallel.axes.experts import apply_expert_parallel
from transom.parallel.axes.sharding import whole
from transom.parallel.gradients import Gradients
from transom.parallel.layouts import apply_layout, gather_whole
from transom.parallel.mesh import SINGLE_RANK, Ranks, build_mesh
from transom.parallel.processes.collectives import World
from transom.parallel.processes.local_ranks import run_on_ranks
from transom.training.objectives.auxiliary import auxiliary_objectives
from transom.training.objectives.objective import CrossEntropy, forward_pass
from transom.training.optimizer import build_optimizer
from transom.training.train_state import optimizer_tensors, trainable_tensors

SIZES = {"d_model": 8, "n_heads": 2, "d_ff": 6, "dropout": 0.0}
TEXT = SIZES | {"max_seq_len": 8, "n_kv_heads": 1}
DECODER = TEXT | {"kind": "decoder", "n_layers": 2, "vocab_size": 11, "position": "rotary", "norm": "rmsnorm"}
TRANSLATOR = TEXT | {"kind": "seq2seq", "n_encoder_layers": 1, "n_decoder_layers": 1, "source_vocab_size": 11, "target_vocab_size": 11}
IMAGES = SIZES | {"kind": "vision-transformer", "n_layers": 2, "image_size": 6, "patch_size": 3, "channels": 1, "classes": ["a", "b", "c"]}
LOSS = {"load_balancing": {"kind": "aux-loss", "aux_loss_coef": 0.7}, "z_loss_coef": 0.3}
BIAS = {"load_balancing": {"kind": "bias", "bias_update_rate": 0.05}, "scoring_func": "sigmoid", "z_loss_coef": 0.2}
ONE = {"top_k": 1, "norm_topk_prob": False}


def long(layout: dict[str, int], cases: list[dict[str, Any]]) -> Any:
    return pytest.param(layout, cases, marks=pytest.mark.long)


def name_of(value: Any) -> str:
    return "-".join(f"{axis}{size}" for axis, size in value.items()) if isinstance(value, dict) else ""


class Step(NamedTuple):
    """What a step computes: loss and metrics of the batch, gradients and state of the optimizer by name, and this rank's parameters."""

    loss: float
    metrics: Mapping[str, float]
    tensors: dict[str, Tensor]
    held: list[str]


def mixed(fields: dict[str, Any], n_experts: int = 4, **feed_forward: Any) -> dict[str, Any]:
    return fields | {"feed_forward": {"kind": "moe", "n_experts": n_experts} | feed_forward}


def batch_for(kind: str) -> Any:
    """Return five rows, of texts with padding, some of which hold several documents."""
    torch.manual_seed(2)
    if kind == "vision-transformer":
        return ImageBatch(torch.rand(5, 1, 6, 6, dtype=torch.float64), torch.arange(5) % 3, tuple(range(5)))
    if kind == "seq2seq":
        rows = [torch.randint(4, 11, (n,)).tolist() for n in (3, 6, 1, 7, 2)]
        return translation_batch(rows, rows[::-1], range(5))
    segments = torch.tensor([[1, 1, 1, 2, 2, 2, 0], [1] * 7, [1, 2, 2, 2, 2, 3, 0], [1, 1, 0, 0, 0, 0, 0], [1, 1, 1, 1, 2, 3, 3]])
    positions = torch.stack([torch.cat([torch.arange(int(n)) for n in row.unique_consecutive(return_counts=True)[1]]) for row in segments])
    tokens = torch.randint(4, 11, segments.shape) * (segments > 0)
    return LanguageBatch(PaddedSequences(tokens, positions, segments, (segments > 0).sum(1)), tokens.roll(-1, 1), tuple(range(5)))


def without_tokens(batch: Any) -> Any:
    """Return the batch of texts with padding in place of all tokens."""
    sides = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    padding = {
        name: dataclasses.replace(side, segments=side.segments * 0, lengths=side.lengths * 0)
        for name, side in sides.items()
        if isinstance(side, PaddedSequences)
    }
    return dataclasses.replace(batch, **padding)


def built(fields: dict[str, Any]) -> Network:
    torch.manual_seed(1)
    return build_model(TypeAdapter(AnyModel).validate_python(fields)).double().train()


def blocks(model: Network) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(module, Block)]


def split(model: Network, ranks: Ranks) -> None:
    """Apply the layout, and check that names and values are those of the whole model."""
    before = {name: x.clone() for name, x in trainable_tensors(model).items()}
    apply_layout(model, ranks)
    held = trainable_tensors(model)
    assert [*held] == [name for name in before if name in held] and all(torch.equal(whole(x), before[name]) for name, x in held.items())
    gathered = gather_whole(model, held, ranks)
    assert ranks.world.rank or (gathered.keys() == before.keys() and all(torch.equal(gathered[name], x) for name, x in before.items()))


def step(fields: dict[str, Any], part: Any, n_tokens: int, ranks: Ranks = SINGLE_RANK, recomputed: bool = False) -> Step:
    """Compute a step from ``part``, this rank's part of a batch of ``n_tokens`` target tokens."""
    model = built(fields)
    split(model, ranks)
    held = [name for name, _ in model.named_parameters()]
    for block in blocks(model) if recomputed else []:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)  # type: ignore[method-assign]
    optimizer, auxiliary = build_optimizer(model, AdamConfig()), auxiliary_objectives(model, ranks.batch)
    for each in auxiliary:
        each.prepare([part])
    forward = forward_pass(model, part, [site for each in auxiliary for site in each.sites])
    loss = CrossEntropy(0.1).loss(forward).backward_loss / n_tokens + sum(each.loss(forward) for each in auxiliary)
    loss.backward()
    Gradients(model, ranks).all_reduce()
    optimizer.step()
    metrics = {name: value for each in auxiliary for name, value in each.after_update(True).items()}
    gradients = {f"{name}.gradient": parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    tensors = trainable_tensors(model) | gradients | optimizer_tensors(model, optimizer)
    return Step(*ranks.batch.all_reduce_scalars(loss.item()), metrics, gather_whole(model, tensors, ranks), held)


def steps(rank: int, layout: ParallelConfig, cases: list[dict[str, Any]], idle: bool, recomputed: bool) -> list[Step]:
    """Compute a step of each model on this rank; with ``idle`` the last rank's part of the batch has no tokens."""
    ranks, results = Ranks(World(rank, layout.n_processes), layout, torch.device("cpu")), []
    for fields in cases:
        batch, index = batch_for(fields["kind"]), layout.batch_part(rank)
        parts = split_rows(batch, layout.n_batch_parts - idle)
        part = parts[index] if index < len(parts) else without_tokens(parts[0])
        results.append(step(fields, part, batch.n_target_tokens, ranks, recomputed))
    return results


def check(layout: dict[str, int], cases: list[dict[str, Any]], idle: bool = False, recomputed: bool = False) -> None:
    """Compare a step in ``layout`` with one in one process, and count the parameters that each rank holds."""
    config = ParallelConfig.model_validate(layout)
    found = run_on_ranks(config.n_processes, steps, config, cases, idle, recomputed)
    for number, fields in enumerate(cases):
        batch = batch_for(fields["kind"])
        expected = step(fields, batch, batch.n_target_tokens)
        is_expert = {name: ".experts." in name for name in expected.held}
        for rank, results in enumerate(found):
            loss, metrics, tensors, held = results[number]
            assert loss == pytest.approx(expected.loss, abs=1e-10) and metrics == expected.metrics
            assert rank or tensors.keys() == expected.tensors.keys()
            for name, x in tensors.items():
                assert torch.allclose(x, expected.tensors[name], rtol=0, atol=1e-10), name
            n_experts = sum(is_expert[name] for name in held)
            assert n_experts * config.expert == sum(is_expert.values()) and len(held) - n_experts == sum(
                not each for each in is_expert.values()
            )


@pytest.mark.parametrize(
    ("layout", "cases"),
    [
        ({"expert": 2}, [mixed(TRANSLATOR, **BIAS, n_shared_experts=1)]),
        long({"expert": 2}, [mixed(DECODER, **LOSS), mixed(IMAGES, **LOSS, **ONE)]),
        long({"expert": 3}, [mixed(DECODER, 6, **BIAS, **ONE), mixed(TRANSLATOR, 3, **LOSS), mixed(IMAGES, 3, load_balancing="none")]),
        long({"expert": 4}, [mixed(DECODER, **BIAS, expert={"kind": "relu", "bias": True})]),
        long({"data": 2, "expert": 2}, [mixed(DECODER, **LOSS, n_shared_experts=2), mixed(IMAGES, **BIAS)]),
        long({"shard": 2, "expert": 2}, [mixed(DECODER, **LOSS, n_shared_experts=1), mixed(TRANSLATOR, **BIAS), mixed(IMAGES, **ONE)]),
    ],
    ids=name_of,
)
def test_a_step_is_that_of_one_process(layout: dict[str, int], cases: list[dict[str, Any]]) -> None:
    check(layout, cases)


GRID = {
    "load_balancing": [LOSS["load_balancing"], BIAS["load_balancing"], "none"],
    "top_k": [1, 2],
    "n_shared_experts": [0, 1],
    "scoring_func": ["softmax", "sigmoid"],
}


@pytest.mark.soak
@pytest.mark.parametrize(
    "layout", [{"expert": 2}, {"expert": 3}, {"expert": 4}, {"data": 2, "expert": 2}, {"shard": 2, "expert": 2}], ids=name_of
)
def test_a_step_is_that_of_one_process_for_all_mixtures(layout: dict[str, int]) -> None:
    families = itertools.cycle([DECODER, TRANSLATOR, IMAGES])
    grid = [dict(zip(GRID, values, strict=True)) for values in itertools.product(*GRID.values())]
    check(layout, [mixed(next(families), 12, **fields, z_loss_coef=0.3, norm_topk_prob=fields["top_k"] > 1) for fields in grid])


@pytest.mark.long
def test_a_rank_without_tokens_takes_part() -> None:
    check({"expert": 3}, [mixed(DECODER, 3, **LOSS, n_shared_experts=1), mixed(TRANSLATOR, 3, **BIAS)], idle=True)


@pytest.mark.long
def test_recomputed_blocks_exchange_their_tokens_again() -> None:
    check({"expert": 2}, [mixed(DECODER, **LOSS), mixed(TRANSLATOR, **BIAS)], recomputed=True)


def layer() -> MixtureOfExperts:
    torch.manual_seed(1)
    built = build_feed_forward(MoeConfig(n_experts=2, expert={"kind": "relu", "bias": True}), 6, 7, 0.0)
    assert isinstance(built, MixtureOfExperts)
    return built


def rows_for(rank: int) -> Tensor:
    """Return no tokens on rank 0, and on rank 1 more than ``PAD_MULTIPLE`` for each expert."""
    torch.manual_seed(2)
    return torch.randn(2 * PAD_MULTIPLE + 9, 6)[: None if rank else 0]


def layer_results(rank: int) -> tuple[list[Tensor], list[Tensor], list[int]]:
    """Return outputs in bfloat16, in float32 and of a copy in evaluation, gradients of the first, and the rows of its expert."""
    mixture, rows, x = layer(), [], rows_for(rank)
    apply_expert_parallel(mixture, build_mesh(ParallelConfig(expert=2), torch.device("cpu")))
    mixture.experts[rank].register_forward_pre_hook(lambda _, given: rows.append(len(given[0])))
    with torch.autocast("cpu", torch.bfloat16):
        short = mixture(x)
    short.float().sum().backward()
    with torch.no_grad():
        outputs = [short.detach(), mixture(x), copy.deepcopy(mixture).eval()(x)]
    return outputs, [p.grad for p in mixture.experts.parameters() if p.grad is not None], rows


def test_a_rank_without_rows_lends_its_expert_in_any_precision() -> None:
    (idle, *_), (busy, *_) = results = run_on_ranks(2, layer_results)
    mixture, x = layer(), rows_for(1)
    with torch.autocast("cpu", torch.bfloat16):
        expected = mixture(x)
    expected.float().sum().backward()
    assert [y.shape for y in idle] == [(0, 6)] * 3 and busy[0].dtype == idle[0].dtype == torch.bfloat16
    assert torch.equal(busy[0], expected) and torch.equal(busy[1], busy[2]) and torch.allclose(busy[1], mixture(x), atol=1e-6)
    for expert, (_, gradients, rows) in zip(mixture.experts, results, strict=True):
        assert rows[0] % PAD_MULTIPLE == 0 < rows[0] and len(rows) == 3
        assert all(torch.equal(found, p.grad) for found, p in zip(gradients, expert.parameters(), strict=True))
