"""Pipeline stages against one process: loss and every gradient in float64, for each family and for micro-batches of any shapes."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.schedules import PipelineScheduleSingle
from torch.distributed.tensor import DTensor

from tests.tiers import every
from transom.config.architecture import ModelConfig, TransformerConfig
from transom.config.recipe import parse_model_config
from transom.config.training import AdamWConfig, EarlyExitLossConfig
from transom.data.batch import (
    Batch,
    ContrastiveBatch,
    ImageBatch,
    LabeledTextBatch,
    LanguageBatch,
    MaskedBatch,
    PaddedSequences,
    TranslationBatch,
)
from transom.errors import ConfigError
from transom.layers.block import Block
from transom.models.base import Network
from transom.models.build import build_model
from transom.parallel.axes import pipeline as pipeline_module
from transom.parallel.axes.pipeline import Pipeline, split_micro_batches
from transom.parallel.axes.pipeline_split import list_stacks
from transom.parallel.axes.pipeline_stage import StageLoss
from transom.parallel.processes.collectives import SINGLE_PROCESS, World
from transom.parallel.processes.local_ranks import RanksFailedError, run_on_ranks
from transom.planning.pipeline_stages import balance_stages, count_block_flops
from transom.training.objectives.auxiliary import auxiliary_objectives
from transom.training.objectives.early_exit import add_early_exit_losses
from transom.training.objectives.objective import CrossEntropy, Objective, forward_pass
from transom.training.objectives.r_drop import RDrop
from transom.training.optimizer import build_optimizer
from transom.training.pipeline_loss import PipelineLoss

VOCAB = 9
SIZES = {"d_model": 8, "n_heads": 2, "d_ff": 12, "dropout": 0.0}
DECODER = {"kind": "decoder", "vocab_size": VOCAB, "n_layers": 4}
TRANSLATOR = {"kind": "seq2seq", "n_encoder_layers": 2, "n_decoder_layers": 3, "source_vocab_size": VOCAB, "target_vocab_size": VOCAB}
ENCODER = {"kind": "encoder", "vocab_size": VOCAB, "n_layers": 3}
CLASSES = {"vocab_size": VOCAB, "n_layers": 3, "classes": ["a", "b", "c"], "head_bias": True}
IMAGES = {"kind": "vision-transformer", "n_layers": 3, "image_size": 8, "channels": 1, "classes": ["a", "b", "c"]}
BALANCED = {"kind": "moe", "n_experts": 3, "load_balancing": {"kind": "aux-loss", "aux_loss_coef": 0.7}, "z_loss_coef": 0.3}
BIASED = {"kind": "moe", "n_experts": 3, "load_balancing": "bias", "z_loss_coef": 0.3, "scoring_func": "sigmoid"}
SHAPES = ((2, 5), (1, 3), (3, 7), (2, 4), (1, 6))
"""Rows and length of each micro-batch."""


@dataclass(frozen=True)
class Case:
    """A model, the shapes of its micro-batches, and its loss: plain, r-drop or early-exit."""

    fields: dict[str, Any]
    shapes: tuple[tuple[int, int], ...] = SHAPES
    loss: str = "plain"

    @property
    def config(self) -> ModelConfig:
        return parse_model_config(SIZES | ({} if self.fields["kind"] == IMAGES["kind"] else {"max_seq_len": 16}) | self.fields)

    def model(self) -> Network:
        """Build the model, the same in every process, with weights that are not zero."""
        torch.manual_seed(3)
        model = build_model(self.config).double()
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.1 * torch.randn_like(p))
        return model

    def objective(self, model: Network) -> Objective:
        plain = RDrop(0.1, alpha=0.5) if self.loss == "r-drop" else CrossEntropy(0.1)
        return add_early_exit_losses(plain, model, EarlyExitLossConfig()) if self.loss == "early-exit" else plain

    def batches(self, part: int = 0, n_parts: int = 1) -> list[Batch]:
        """Draw the micro-batches of a part of the batch."""
        draw = torch.Generator().manual_seed(1)
        return [draw_batch(self.fields["kind"], *shape, draw) for shape in self.shapes][part::n_parts]


def draw_texts(n_rows: int, length: int, draw: torch.Generator) -> PaddedSequences:
    """Draw texts with padding; the first row fills the length and holds two texts."""
    rows = [[2, *torch.randint(4, VOCAB, (max(1, length - 1 - i),), generator=draw).tolist()] for i in range(n_rows)]
    text = PaddedSequences.pad(rows)
    positions, segments = text.positions.repeat(n_rows, 1), text.segments.clone()
    positions[0, 2:] -= 2
    segments[0, 2:] += 1
    return PaddedSequences(text.tokens, positions, segments, text.lengths)


def draw_batch(kind: str, n_rows: int, length: int, draw: torch.Generator) -> Batch:
    ids, classes = tuple(range(n_rows)), torch.randint(3, (n_rows,), generator=draw)
    if kind == IMAGES["kind"]:
        return ImageBatch(torch.rand(n_rows, 1, 8, 8, generator=draw, dtype=torch.float64), classes, ids)
    text = draw_texts(n_rows, length, draw)
    if kind == "seq2seq":
        return TranslationBatch(draw_texts(n_rows, length + 1, draw), text, text.tokens.roll(-1, 1), ids)
    if kind == "text-embedder":
        return ContrastiveBatch(text, draw_texts(n_rows, length + 2, draw), ids)
    if kind == "text-classifier":
        return LabeledTextBatch(text, classes, ids)
    if kind == "decoder":
        return LanguageBatch(text, text.tokens.roll(-1, 1), ids)
    return MaskedBatch(text, text.tokens % 3 if kind == "token-tagger" else text.tokens, (text.tokens > 4) | (text.positions == 0), ids)


def compute(case: Case) -> tuple[float, float, dict[str, Tensor], dict[str, float]]:
    """Return loss, negative log-likelihood, gradients and auxiliary metrics of one process."""
    model = case.model()
    objective, auxiliary = case.objective(model), auxiliary_objectives(model, SINGLE_PROCESS)
    sites = [*objective.sites, *(site for each in auxiliary for site in each.sites)]
    batches = [objective.prepare(batch) for batch in case.batches()]
    n, loss, nll = sum(batch.n_target_tokens for batch in case.batches()) * objective.n_copies, 0.0, 0.0
    for each in auxiliary:
        each.prepare(batches)
    for batch in batches:
        forward = forward_pass(model, batch, sites)
        found = objective.loss(forward)
        (found.backward_loss / n + sum(each.loss(forward) for each in auxiliary)).backward()
        loss, nll = loss + found.loss.item(), nll + found.nll.item()
    metrics = {name: value for each in auxiliary for name, value in each.after_update(True).items()}
    return loss, nll, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}, metrics


def stage_of(case: Case, mesh: DeviceMesh, n_stages: int) -> Pipeline:
    config = case.config
    assert isinstance(config, TransformerConfig)
    stages = balance_stages(count_block_flops(config, 8, 8), n_stages)
    return Pipeline(case.model(), mesh.get_group("pipeline"), stages, partial(torch.autocast, "cpu", enabled=False), torch.float64)


def shard(pipeline: Pipeline, mesh: DeviceMesh) -> None:
    for module in [*(each for each in pipeline.module.modules() if isinstance(each, Block)), pipeline.module]:
        fully_shard(module, mesh=mesh)
    for module in pipeline.module.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)


def run_stage(
    rank: int, cases: Sequence[Case], n_stages: int, n_parts: int, kind: str, schedule: type[PipelineScheduleSingle]
) -> list[Any]:
    """Compute each case on this rank's stage and part of the batch."""
    mesh, results = init_device_mesh("cpu", (n_stages, n_parts), mesh_dim_names=("pipeline", kind)), []
    pipeline_module.Schedule1F1B = schedule  # type: ignore[misc, assignment]
    for case in cases:
        pipeline = stage_of(case, mesh, n_stages)
        model, part = pipeline.module.model, mesh.get_local_rank(kind)
        n_elements = sum(p.numel() for p in pipeline.counted)
        if kind == "shard":
            shard(pipeline, mesh["shard"])
        world = SINGLE_PROCESS if n_parts == 1 else World(part, n_parts, mesh.get_group(kind))
        objective, auxiliary = case.objective(model), auxiliary_objectives(model, world, pipeline.record)
        n = sum(batch.n_target_tokens for batch in case.batches()) * objective.n_copies
        batches = [objective.prepare(batch) for batch in split_micro_batches(case.batches(part, n_parts), n_stages)]
        n_passes = 0 if n_parts == 1 else len(SHAPES)
        for each in auxiliary:
            each.prepare(batches)
        loss = PipelineLoss(objective, auxiliary, n, model.logit_softcap if pipeline.module.is_last else None)
        sites = [site for each in auxiliary for site in each.sites]
        sums = pipeline.forward_backward(batches, loss, sites, objective.sites, n_passes)
        pipeline.sum_shared_gradients()
        metrics = {name: value for each in auxiliary for name, value in each.after_update(True).items()}
        gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        gradients = {name: grad.full_tensor() if isinstance(grad, DTensor) else grad for name, grad in gradients.items()}
        if kind == "data" and n_parts > 1:
            world.all_reduce(list(gradients.values()))
        results.append((sums, gradients, metrics, n_elements))
    return results


def assert_equal(
    cases: Sequence[Case], n_stages: int, n_parts: int = 1, kind: str = "data", schedule: type[PipelineScheduleSingle] = Schedule1F1B
) -> None:
    """Compare every case with one process, and the copies of shared parameters with each other."""
    by_rank = run_on_ranks(n_stages * n_parts, run_stage, cases, n_stages, n_parts, kind, schedule)
    for i, case in enumerate(cases):
        loss, nll, expected, metrics = compute(case)
        found = [results[i] for results in by_rank]
        for first in range(0, len(found), n_parts):  # of each stage, over the parts of the batch
            sums = [sum(each) for each in zip(*(sums for sums, *_ in found[first : first + n_parts]), strict=True)]
            assert sums == pytest.approx([loss, nll], abs=1e-10)
        assert sum(n_elements for *_, n_elements in found[::n_parts]) == sum(p.numel() for p in case.model().parameters())
        assert {name for _, gradients, *_ in found for name in gradients} == set(expected)
        for _, gradients, *_ in found:
            for name, gradient in gradients.items():
                assert torch.allclose(gradient, expected[name], rtol=0, atol=1e-10), (case, name)
                assert all(torch.equal(gradient, each[1][name]) for each in found if name in each[1]), "copies stay equal"
        for name, value in metrics.items():
            of_stages = [each[2].get(name, 0.0) for each in found[::n_parts]]
            assert (max(of_stages) if name == "max_expert_load" else sum(of_stages)) == value


FAMILIES = [
    Case(DECODER | {"tie_embeddings": True, "norm_placement": "post"}),
    Case(DECODER | {"tie_embeddings": False, "position": "relative", "attention": {"value_residual": "learned"}, "logit_softcap": 3.0}),
    Case(TRANSLATOR | {"tie_embeddings": "all"}),
    Case(TRANSLATOR | {"tie_embeddings": "none", "norm_placement": "post", "attention": {"value_residual": "learned"}}),
    Case(ENCODER | {"tie_embeddings": True, "head_bias": True}),
    Case(CLASSES | {"kind": "text-classifier", "position": "relative"}),
    Case(CLASSES | {"kind": "token-tagger", "norm_placement": "post"}),
    Case({"kind": "text-embedder", "vocab_size": VOCAB, "n_layers": 3, "temperature": 0.5}),
    Case(IMAGES),
]
LOSSES = [
    Case(DECODER | {"feed_forward": BALANCED}),
    Case(TRANSLATOR | {"feed_forward": BIASED}, loss="r-drop"),
    Case(DECODER | {"tie_embeddings": True}, loss="early-exit"),
    Case(DECODER | {"depth": {"kind": "mod", "capacity": 0.5, "every": 2}}),
    Case(DECODER, shapes=((3, 5),)),
    Case(DECODER, shapes=((1, 5),)),
    Case(DECODER | {"feed_forward": BIASED}, shapes=((3, 5), (1, 4))),
]


PRODUCTS = [FAMILIES[0], FAMILIES[2], Case(DECODER | {"feed_forward": BIASED}), Case(DECODER, shapes=((3, 5), (2, 4)))]


def test_every_family_equals_one_process() -> None:
    assert_equal(FAMILIES, 3)


def test_every_loss_equals_one_process() -> None:
    assert_equal(LOSSES, 2)


@pytest.mark.long
def test_other_numbers_of_stages_equal_one_process() -> None:
    assert_equal([case for case in FAMILIES if case.config.stacks != (3,)], 4)
    assert_equal(FAMILIES, 2)
    assert_equal(LOSSES, 3)


@pytest.mark.long
def test_a_pipeline_of_shards_equals_one_process() -> None:
    assert_equal(PRODUCTS, 2, 2, "shard")


@pytest.mark.long
def test_a_pipeline_times_data_equals_one_process() -> None:
    assert_equal([*PRODUCTS, LOSSES[0]], 2, 2, "data")


@pytest.mark.long
def test_gpipe_gives_the_same_gradients() -> None:
    assert_equal([FAMILIES[2], LOSSES[0]], 2, schedule=ScheduleGPipe)


def train(rank: int, case: Case) -> Any:
    """Take two steps on this rank's stage; collect weights and optimizer state of all stages on the first."""
    mesh = init_device_mesh("cpu", (3,), mesh_dim_names=("pipeline",))
    pipeline = stage_of(case, mesh, 3)
    model = pipeline.module.model
    optimizer = build_optimizer(model, AdamWConfig())
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    norms = []
    for _ in range(2):
        pipeline.forward_backward(case.batches(), PipelineLoss(CrossEntropy(0.1), [], 20.0))
        pipeline.sum_shared_gradients()
        norms.append(sum(p.grad.square().sum().item() for p in pipeline.counted if p.grad is not None))
        optimizer.step()
        optimizer.zero_grad()
    state = {f"{name}.{key}": x for name, p in model.named_parameters() for key, x in optimizer.state[p].items()}
    own = {name: p.detach() for name, p in model.named_parameters()}
    return norms, own, *(World(rank, 3).gather_tensors(x, torch.device("cpu")) for x in (model.state_dict(), state))


@pytest.mark.parametrize("tied", every(2, ["all", "none"]))
def test_two_steps_and_the_collected_tensors_are_those_of_one_process(tied: str) -> None:
    case = Case(TRANSLATOR | {"tie_embeddings": tied})
    ranks = run_on_ranks(3, train, case)
    model = case.model()
    optimizer = build_optimizer(model, AdamWConfig())
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    for step in range(2):
        for batch in case.batches():
            (CrossEntropy(0.1).loss(forward_pass(model, batch)).backward_loss / 20.0).backward()
        norm = sum(p.grad.square().sum().item() for p in model.parameters() if p.grad is not None)
        assert sum(norms[step] for norms, *_ in ranks) == pytest.approx(norm, abs=1e-9), "each parameter counts once"
        optimizer.step()
        optimizer.zero_grad()
    _, _, weights, state = ranks[0]
    assert weights.keys() == model.state_dict().keys()
    assert all(torch.allclose(weights[name], x, rtol=0, atol=1e-8) for name, x in model.state_dict().items())
    assert all(torch.equal(x, weights[name]) for _, each, *_ in ranks for name, x in each.items()), "copies stay equal"
    expected = {f"{name}.{key}": x for name, p in model.named_parameters() for key, x in optimizer.state[p].items()}
    assert state.keys() == expected.keys()
    assert all(torch.allclose(state[name], x, rtol=0, atol=1e-8) for name, x in expected.items())
    assert [each[2] for each in ranks[1:]] == [{}, {}]
    case.model().load_state_dict(weights)
    shared = sum(set(a) & set(b) == {"source_embedding.tokens.weight"} for a, b in combinations((each[1] for each in ranks), 2))
    assert shared == (3 if tied == "all" else 0), "a stage holds only what it needs"


def fail(rank: int) -> None:
    case, mesh = Case(DECODER), init_device_mesh("cpu", (2,), mesh_dim_names=("pipeline",))

    def loss(batch: Batch, factors: Any, activations: Any, counted: bool) -> StageLoss:
        if factors is not None:
            raise ConfigError("the loss fails")
        return StageLoss()

    stage_of(case, mesh, 2).forward_backward(case.batches(), loss)


def test_an_error_of_one_stage_is_raised_as_it_is_and_ends_the_others() -> None:
    with pytest.raises(RanksFailedError) as failed:
        run_on_ranks(2, fail)
    cause, other = failed.value.failures
    assert (cause.rank, cause.error) == (1, "ConfigError: the loss fails")
    assert other.error.startswith("ProcessLostError: expected 2 running pipeline stages")


def test_a_recurrent_model_is_refused() -> None:
    model = build_model(parse_model_config({"kind": "recurrent-decoder", "vocab_size": VOCAB, "d_model": 8}))
    with pytest.raises(ConfigError, match=r"parallel\.pipeline: expected a Transformer.*found a RecurrentLanguageModel; set .* = 1"):
        list_stacks(model)


def test_micro_batches_are_split_by_rows_until_each_stage_has_one() -> None:
    batches = Case(DECODER, shapes=((3, 5), (1, 4))).batches()
    assert [len(batch.sample_ids) for batch in split_micro_batches(batches, 2)] == [3, 1]
    assert [len(batch.sample_ids) for batch in split_micro_batches(batches, 3)] == [1, 2, 1]
    assert [len(batch.sample_ids) for batch in split_micro_batches(batches, 9)] == [1, 1, 1, 1]
