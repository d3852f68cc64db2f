"""Mixtures in training: the same update however a batch is sliced, biases that move once a step, and experts that become equally busy."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.test_train_loop import MODEL, die_and_end_the_same, kill_at, sit, traces
from tests.training.test_train_step import SOURCES, TARGETS, N
from transom.checkpoints.run_files import WEIGHTS
from transom.checkpoints.run_folder import RunFolder
from transom.checkpoints.tensors import read_tensors
from transom.config.model import DecoderConfig, Seq2SeqConfig, TextEmbedderConfig
from transom.config.training import AdamConfig, TrainingConfig
from transom.data.batch import LanguageBatch, PaddedSequences, contrastive_batch
from transom.data.pairs.loader import translation_batch
from transom.layers.mixture_of_experts import MixtureOfExperts
from transom.models.base import Network
from transom.models.build import build_model
from transom.training.events import CheckpointSaved, Event, StepFinished
from transom.training.objectives.objective import CrossEntropy, forward_pass
from transom.training.optimizer import build_optimizer
from transom.training.train_step import TrainStep

SIZES = {"d_model": 8, "n_heads": 2, "d_ff": 6, "max_seq_len": 16, "dropout": 0.0}
TRAINING = TrainingConfig(optimizer=AdamConfig(), label_smoothing=0.1, max_grad_norm=None)
LOSS = {"kind": "moe", "n_experts": 4, "load_balancing": {"kind": "aux-loss", "aux_loss_coef": 0.7}, "z_loss_coef": 0.3}
BIAS = {
    "kind": "moe",
    "n_experts": 4,
    "load_balancing": {"kind": "bias", "bias_update_rate": 0.05},
    "z_loss_coef": 0.3,
    "scoring_func": "sigmoid",
}


def translator(**feed_forward: Any) -> Network:
    torch.manual_seed(1)
    sides = {"n_encoder_layers": 1, "n_decoder_layers": 1, "source_vocab_size": 12, "target_vocab_size": 12}
    return build_model(Seq2SeqConfig.model_validate(SIZES | sides | {"feed_forward": feed_forward})).double()


def stepped(model: Network, n_micro_batches: int) -> tuple[Network, Any]:
    """Make one step from the batch in slices."""
    train_step = TrainStep(
        model, build_optimizer(model, TRAINING.optimizer), TRAINING, torch.float32, CrossEntropy(TRAINING.label_smoothing)
    )
    rows = [list(range(i, N, n_micro_batches)) for i in range(n_micro_batches)]
    micro_batches = [translation_batch([SOURCES[i] for i in part], [TARGETS[i] for i in part], part) for part in rows]
    return model, train_step.step(micro_batches, 0.01)


def mixtures(model: Network) -> list[MixtureOfExperts]:
    return [module for module in model.modules() if isinstance(module, MixtureOfExperts)]


@pytest.mark.parametrize("fields", [LOSS, BIAS], ids=["loss", "bias"])
@pytest.mark.parametrize("n_micro_batches", [4, 32])
def test_a_batch_gives_the_same_update_however_it_is_sliced(fields: dict[str, Any], n_micro_batches: int) -> None:
    whole, result = stepped(translator(**fields), 1)
    sliced, again = stepped(translator(**fields), n_micro_batches)
    assert (result.grad_norm, result.loss) == pytest.approx((again.grad_norm, again.loss), abs=1e-9)
    assert result.aux_metrics == again.aux_metrics and result.aux_metrics["max_expert_load"] > 1
    for a, b in zip(whole.parameters(), sliced.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-8)
    for a, b in zip(mixtures(whole), mixtures(sliced), strict=True):
        assert a.bias is b.bias is None or (torch.equal(a.bias, b.bias) and a.bias.any())


def test_what_is_dropped_counts_once_also_where_a_batch_is_read_twice() -> None:
    results = [stepped(translator(**LOSS | {"load_balancing": balance, "capacity_factor": 0.5}), 4)[1] for balance in ("aux-loss", "none")]
    assert results[0].aux_metrics == results[1].aux_metrics and results[0].aux_metrics["expert_overflow"] > 0


def test_the_gradient_is_that_of_the_losses_written_out() -> None:
    model, batch = translator(**LOSS), translation_batch(SOURCES, TARGETS, range(N))
    sides = {"encoder.blocks.0.ff.router": batch.source, "decoder.blocks.0.ff.router": batch.decoder_input}
    forward = forward_pass(model, batch, list(sides))
    loss = CrossEntropy(0.1).loss(forward).backward_loss / batch.n_target_tokens
    for address, side in sides.items():
        (logits,) = forward.activations[address]
        p = logits[side.segments > 0].softmax(-1)
        f = torch.nn.functional.one_hot(p.topk(2).indices, 4).double().mean((0, 1))
        loss = loss + 0.7 * 4 * (f * p.mean(0)).sum() + 0.3 * logits[side.segments > 0].exp().sum(-1).log().square().mean()
    expected = torch.autograd.grad(loss, list(model.parameters()))
    norm = torch.cat([g.flatten() for g in expected]).norm().item()
    assert stepped(translator(**LOSS), 1)[1].grad_norm == pytest.approx(norm, rel=1e-9)


def test_padding_counts_neither_for_the_losses_nor_for_capacity() -> None:
    row, dropping = [[4, 5, 6, 7, 8, 9, 10]], LOSS | {"capacity_factor": 0.5}
    results = []
    for width in (8, 14):  # the same tokens in a wider row
        model = translator(**dropping)
        train_step = TrainStep(
            model, build_optimizer(model, TRAINING.optimizer), TRAINING, torch.float32, CrossEntropy(TRAINING.label_smoothing)
        )
        batch = translation_batch([*row, [4] * (width - 1)], [*row, [4] * (width - 1)], [0, 1])

        def cut(side: PaddedSequences) -> PaddedSequences:
            rows = torch.tensor([[True], [False]])
            return PaddedSequences(side.tokens * rows, side.positions, side.segments * rows, side.lengths * rows[:, 0])

        only = type(batch)(cut(batch.source), cut(batch.decoder_input), batch.labels, batch.sample_ids)
        results.append(train_step.step([only], 0.01))
    assert results[0].aux_metrics == results[1].aux_metrics and results[0].aux_metrics["expert_overflow"] > 0
    assert results[0].grad_norm == pytest.approx(results[1].grad_norm, rel=1e-9)


def test_both_sides_of_pairs_are_balanced() -> None:
    torch.manual_seed(1)
    model = build_model(TextEmbedderConfig.model_validate(SIZES | {"n_layers": 1, "vocab_size": 12, "feed_forward": LOSS})).double()
    steppers = [
        TrainStep(model, build_optimizer(model, TRAINING.optimizer), TRAINING, torch.float32, CrossEntropy(TRAINING.label_smoothing))
        for _ in range(2)
    ]
    left_right, right_left = (contrastive_batch(a[:6], b[:6], range(6)) for a, b in ((SOURCES, TARGETS), (TARGETS, SOURCES)))
    loads = [train_step.step([batch], 0.0).aux_metrics for train_step, batch in zip(steppers, (left_right, right_left), strict=True)]
    assert loads[0] == loads[1] and loads[0]
    assert steppers[0].step([contrastive_batch(SOURCES[:6], SOURCES[:6], range(6))], 0.0).aux_metrics != loads[0]


def test_a_skipped_step_moves_no_bias() -> None:
    model = translator(**BIAS)
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    _, result = stepped(model, 1)
    assert result.skipped and not any(each.bias.any() for each in mixtures(model))


@pytest.mark.long
@pytest.mark.parametrize(
    "balance",
    [{"kind": "aux-loss", "aux_loss_coef": 0.5}, {"kind": "bias", "bias_update_rate": 0.02}, {"kind": "none"}],
    ids=lambda b: b["kind"],
)
def test_it_learns_and_either_way_makes_the_experts_equally_busy(balance: dict[str, Any]) -> None:
    torch.manual_seed(3)
    component = {"kind": "moe", "n_experts": 6, "top_k": 2, "load_balancing": balance, "z_loss_coef": 0.0}
    model = build_model(DecoderConfig.model_validate(SIZES | {"n_layers": 1, "vocab_size": 30, "feed_forward": component}))
    with torch.no_grad():
        mixtures(model)[0].router.weight[:2] = 3 * mixtures(model)[0].router.weight[:2].abs()  # a lopsided start
    rows = torch.randint(3, 30, (40, 1)) + torch.zeros(1, 15, dtype=torch.long)
    text = PaddedSequences.pad([[2, *row[:-1]] for row in rows.tolist()])
    batch = LanguageBatch(text, rows, tuple(range(40)))
    train_step = TrainStep(
        model, build_optimizer(model, TRAINING.optimizer), TRAINING, torch.float32, CrossEntropy(TRAINING.label_smoothing)
    )
    results = [train_step.step([batch], 3e-3) for _ in range(150)]
    assert results[-1].nll < 0.5 * results[0].nll
    assert results[0].aux_metrics["max_expert_load"] > 1.6
    late = sum(result.aux_metrics["max_expert_load"] for result in results[-10:]) / 10
    assert late > 1.5 if balance["kind"] == "none" else late < 1.4


MIXED = {**MODEL, "feed_forward": {**BIAS, "capacity_factor": 0.75}}


@pytest.mark.long
@pytest.mark.parametrize("average", ["ema", pytest.param("checkpoints", marks=pytest.mark.long)])
def test_a_killed_run_goes_on_with_its_biases(tmp_path: Path, average: str) -> None:
    fields = {"model": MIXED, "average": average, "validate_bleu": 0}
    die_and_end_the_same(partial(sit, **fields), tmp_path, [kill_at(4, CheckpointSaved), kill_at(8, StepFinished)])
    bias = traces(tmp_path / "alone")[0]["model/encoder.blocks.0.ff.bias"]
    assert bias.any() and read_tensors(tmp_path / "alone" / WEIGHTS)["encoder.blocks.0.ff.bias"].any()
    lines = [line for line in RunFolder.open(tmp_path / "alone").metrics.read() if line["kind"] == "train"]
    assert all(line["max_expert_load"] > 1 and line["expert_overflow"] > 0 for line in lines)


@pytest.mark.long
@pytest.mark.parametrize("fields", [pytest.param(LOSS, marks=pytest.mark.long), BIAS], ids=["loss", "bias"])
def test_two_processes_make_the_steps_of_one(tmp_path: Path, fields: dict[str, Any]) -> None:
    exact = {"precision": "fp32", "max_steps": 5, "checkpoint_every": 5, "validate_every": 5, "validate_bleu": 0, "average": "none"}
    runs = []
    for n in (1, 2):
        seen: list[Event] = []
        sit(tmp_path / str(n), seen.append, model={**MODEL, "dropout": 0.0, "feed_forward": fields}, parallel={"data": n}, **exact)
        runs.append([event for event in seen if isinstance(event, StepFinished)])
    for one, two in zip(*runs, strict=True):
        assert (one.loss, one.grad_norm) == pytest.approx((two.loss, two.grad_norm), rel=2e-4)
        assert one.aux_metrics == two.aux_metrics and one.aux_metrics["max_expert_load"] >= 1
    alone, together = (traces(tmp_path / str(n))[0] for n in (1, 2))
    biases = [name for name in alone if name.startswith("model/") and name.endswith("ff.bias")]
    assert len(biases) == (2 if fields is BIAS else 0) and all(torch.equal(alone[name], together[name]) for name in biases)
