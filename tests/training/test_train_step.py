"""One step: slices give the same update, padding counts nothing, bad samples are named and change nothing."""

import copy
import math
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from transom.config.model import Seq2SeqConfig
from transom.config.training import AdamConfig, AnyOptimizer, MuonConfig, SgdConfig, TrainingConfig
from transom.data.batch import TranslationBatch, duplicate_batch, translation_batch
from transom.layers.dropout import keyed_dropout, keyed_rows
from transom.models.build import build_model
from transom.models.seq2seq import Seq2SeqTransformer
from transom.tasks.translation.schema import TranslationTrainingConfig
from transom.training.objectives.objective import CrossEntropy, forward_pass, indices_of_true
from transom.training.objectives.r_drop import choose_text_loss
from transom.training.optimizer import build_optimizer
from transom.training.train_step import TrainStep, clip_grad_norm_

N = 32
TRAINING = TrainingConfig(optimizer=AdamConfig(), label_smoothing=0.1, max_grad_norm=1.0)


def tiny(tie: Literal["all", "none"] = "all", dropout: float = 0.0) -> Seq2SeqTransformer:
    torch.manual_seed(1)
    config = Seq2SeqConfig(
        d_model=8,
        n_heads=2,
        d_ff=16,
        n_encoder_layers=1,
        n_decoder_layers=1,
        source_vocab_size=12,
        target_vocab_size=12,
        max_seq_len=16,
        dropout=dropout,
        tie_embeddings=tie,
    )
    model = build_model(config)
    assert isinstance(model, Seq2SeqTransformer)
    return model.double()


def sentences() -> tuple[list[list[int]], list[list[int]]]:
    draw = torch.Generator().manual_seed(2)
    row = lambda: torch.randint(4, 12, (int(torch.randint(1, 9, (1,), generator=draw)),), generator=draw).tolist()  # noqa: E731
    return [row() for _ in range(N)], [row() for _ in range(N)]


SOURCES, TARGETS = sentences()


def prepared(model: Seq2SeqTransformer, n_micro_batches: int) -> tuple[TrainStep, list[TranslationBatch]]:
    train_step = TrainStep(
        model, build_optimizer(model, TRAINING.optimizer), TRAINING, torch.float32, CrossEntropy(TRAINING.label_smoothing)
    )
    rows = [list(range(i, N, n_micro_batches)) for i in range(n_micro_batches)]
    return train_step, [translation_batch([SOURCES[i] for i in part], [TARGETS[i] for i in part], part) for part in rows]


def stepped(model: Seq2SeqTransformer, n_micro_batches: int) -> tuple[Seq2SeqTransformer, TrainStep, object]:
    train_step, micro_batches = prepared(model, n_micro_batches)
    return model, train_step, train_step.step(micro_batches, 0.01)


@pytest.mark.parametrize("n_micro_batches", [4, 8, 32])
def test_one_batch_of_32_is_4_of_8_is_8_of_4_is_32_of_1(n_micro_batches: int) -> None:
    whole, _, result = stepped(tiny(), 1)
    sliced, _, same = stepped(tiny(), n_micro_batches)
    assert result.loss == pytest.approx(same.loss, abs=1e-10) and result.grad_norm == pytest.approx(same.grad_norm, abs=1e-10)
    for a, b in zip(whole.parameters(), sliced.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-9)


class CountWaits(TorchDispatchMode):
    """Count the operations that wait for a device: those that read a number, and those whose result is as long as the values say."""

    WAITING = ("_local_scalar_dense", "nonzero", "equal", "masked_select", "unique")

    def __init__(self) -> None:
        super().__init__()
        self.n = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.n += any(str(func).startswith(f"aten.{name}") for name in self.WAITING)
        return func(*args, **(kwargs or {}))


def test_micro_batches_do_not_wait_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait twice per step: for the losses of all micro-batches, once all are computed, and for the norm of the gradients."""
    fetched = list[torch.Size]()
    to_list = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda x: (fetched.append(x.shape), to_list(x))[1])
    for n_micro_batches in (1, 8):
        fetched.clear()
        train_step, micro_batches = prepared(tiny(dropout=0.1), n_micro_batches)
        assert sum(batch.n_target_tokens for batch in micro_batches) > 0, "counted before the batches are moved"
        with CountWaits() as waits:
            train_step._step([batch.to(torch.device("cpu")) for batch in micro_batches], 0.01, 0.0)
        assert waits.n == 1 and len(fetched) == 1


@given(st.lists(st.booleans()))
def test_indices_of_true_are_those_of_nonzero(values: list[bool]) -> None:
    mask = torch.tensor(values, dtype=torch.bool)
    assert torch.equal(indices_of_true(mask, sum(values)), mask.nonzero()[:, 0])


@pytest.mark.parametrize("max_grad_norm", [None, 0.05, 1e3])
def test_an_update_is_no_longer_than_the_clipped_gradient(max_grad_norm: float | None) -> None:
    model = tiny()
    before = [p.detach().clone() for p in model.parameters()]
    training = TrainingConfig(optimizer=SgdConfig(momentum=0.0), max_grad_norm=max_grad_norm)
    result = TrainStep(
        model, build_optimizer(model, training.optimizer), training, torch.float32, CrossEntropy(training.label_smoothing)
    ).step([translation_batch(SOURCES, TARGETS, range(N))], 0.5)
    moved = torch.cat([(a - b).flatten() for a, b in zip(model.parameters(), before, strict=True)]).norm().item()
    assert 0.05 < result.grad_norm < 1e3, "the norm that is told is that before clipping"
    assert moved == pytest.approx(0.5 * min(result.grad_norm, max_grad_norm or result.grad_norm), rel=1e-4)


def test_padding_counts_nothing() -> None:
    model = tiny()
    together = translation_batch(SOURCES, TARGETS, range(N))
    whole, *alone = (
        CrossEntropy(0.1).loss(forward_pass(model, batch))
        for batch in (together, *(translation_batch([s], [t], [0]) for s, t in zip(SOURCES, TARGETS, strict=True)))
    )
    assert whole.backward_loss.item() == pytest.approx(sum(each.backward_loss.item() for each in alone), abs=1e-9)
    assert whole.nll.item() == pytest.approx(sum(each.nll.item() for each in alone), abs=1e-9)


def test_a_non_finite_gradient_skips_the_step_and_names_the_sample() -> None:
    model = tiny(tie="none")  # or the spoilt symbol would be in every sample's logits
    train_step = TrainStep(
        model, build_optimizer(model, TRAINING.optimizer), TRAINING, torch.float32, CrossEntropy(TRAINING.label_smoothing)
    )
    train_step.step([translation_batch(SOURCES, TARGETS, range(N))], 0.01)
    before = copy.deepcopy((dict(model.named_parameters()), train_step.optimizer.state_dict()))
    with torch.no_grad():
        spoilt = model.source_embedding.tokens.weight.clone()
        model.source_embedding.tokens.weight[11] = float("nan")
    sources, targets = [[5, 6], [5, 7], [6, 11]], [[4], [5], [6]]
    result = train_step.step(
        [translation_batch(sources[:2], targets[:2], [70, 71]), translation_batch(sources[2:], targets[2:], [72])], 0.01
    )
    assert result.skipped == (72,)
    with torch.no_grad():
        model.source_embedding.tokens.weight.copy_(spoilt)
    for name, p in model.named_parameters():
        assert torch.equal(p, before[0][name])
    for number, entries in train_step.optimizer.state_dict()["state"].items():
        assert all(torch.equal(x, before[1]["state"][number][entry]) for entry, x in entries.items())


@pytest.mark.parametrize("optimizer", [TRAINING.optimizer, MuonConfig()])
def test_bfloat16_multiplies_but_weights_statistics_and_losses_stay_in_float32(optimizer: AnyOptimizer) -> None:
    batch = translation_batch(SOURCES, TARGETS, range(N))
    ends = []
    for dtype in (torch.float32, torch.bfloat16):
        model = tiny().float()
        train_step = TrainStep(model, build_optimizer(model, optimizer, dtype), TRAINING, dtype, CrossEntropy(TRAINING.label_smoothing))
        kinds: set[torch.dtype] = set()
        model.encoder.blocks[0].ff.up.register_forward_hook(lambda _, given, out, kinds=kinds: kinds.add(out.dtype))
        results = [train_step.step([batch], 0.01) for _ in range(5)]
        assert kinds == {dtype} and not any(result.skipped for result in results)
        assert {p.dtype for p in model.parameters()} == {torch.float32}
        state = train_step.optimizer.state_dict()["state"]
        assert {x.dtype for entries in state.values() for x in entries.values()} == {torch.float32}
        ends.append(results[-1].nll / N)
    assert ends[0] != ends[1] and ends[0] == pytest.approx(ends[1], rel=1e-2)


@pytest.mark.parametrize("optimizer", [TRAINING.optimizer, MuonConfig()])
def test_float16_scales_the_loss_and_skips_overflow(optimizer: AnyOptimizer) -> None:
    model = tiny().float()
    train_step = TrainStep(
        model, build_optimizer(model, optimizer, torch.float16), TRAINING, torch.float16, CrossEntropy(TRAINING.label_smoothing)
    )
    batch = translation_batch(SOURCES, TARGETS, range(N))
    before = [p.clone() for p in model.parameters()]
    scale = train_step.scaler.get_scale()
    results = [train_step.step([batch], 0.01) for _ in range(12)]
    assert scale > 1 and not results[-1].skipped
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    with torch.no_grad():
        next(model.parameters()).mul_(1e6)
    assert train_step.step([batch], 0.01).skipped and train_step.scaler.get_scale() < scale


def test_a_batch_read_twice_without_dropout_gives_the_update_of_one_read_once() -> None:
    batch = translation_batch(SOURCES, TARGETS, range(N))
    parts = [translation_batch(SOURCES[part], TARGETS[part], range(N)[part]) for part in (slice(9), slice(9, N))]
    for micro_batches in ([batch], parts):
        once, again = tiny(), tiny()
        training = TranslationTrainingConfig(optimizer=SgdConfig(momentum=0.0), r_drop=5.0)
        first = TrainStep(
            once, build_optimizer(once, SgdConfig(momentum=0.0)), TRAINING, torch.float32, CrossEntropy(TRAINING.label_smoothing)
        ).step(micro_batches, 0.5)
        optimizer, objective = build_optimizer(again, training.optimizer), choose_text_loss(training)
        second = TrainStep(again, optimizer, training, torch.float32, objective).step(micro_batches, 0.5)
        assert (second.loss, second.nll) == pytest.approx((first.loss, first.nll), abs=1e-9)
        assert second.n_target_tokens == first.n_target_tokens
        for a, b in zip(once.parameters(), again.parameters(), strict=True):
            assert torch.allclose(a, b, rtol=0, atol=1e-9)


def test_two_readings_are_drawn_together_by_the_paper_s_loss() -> None:
    """-log p - log q + alpha / 2 (KL(p || q) + KL(q || p)) a token (Liang et al. 2021, eq. 4), halved: the mean of two readings."""
    model, alpha = tiny(dropout=0.3), 3.0
    batch = translation_batch(SOURCES, TARGETS, range(N))
    training = TranslationTrainingConfig(label_smoothing=0.0, r_drop=alpha)
    train_step = TrainStep(model, build_optimizer(model, SgdConfig()), training, torch.float32, choose_text_loss(training))
    with torch.no_grad(), keyed_dropout(training.seed, 0, n_copies=2), keyed_rows(duplicate_batch(batch).sample_ids, model.device):
        log_f = model(duplicate_batch(batch)).log_softmax(-1)[duplicate_batch(batch).loss_mask]
    p, q = log_f.chunk(2)
    label = batch.labels[batch.loss_mask][:, None]
    apart = ((p.exp() - q.exp()) * (p - q)).sum()
    expected = -(p.gather(1, label) + q.gather(1, label)).sum() + alpha / 2 * apart
    found = train_step.step([batch], 0.01)
    assert apart > 1, "the readings differ"
    assert found.loss == pytest.approx(expected.item() / 2, rel=1e-6)


@pytest.mark.parametrize("norm", [0.0, 0.5, 1.0, 3.0, float("inf"), float("nan")])
def test_clipping_is_that_of_pytorch_and_passes_over_no_gradient_below_the_limit(norm: float) -> None:
    direction = [torch.randn(3, 4), torch.randn(5)]
    total = torch.nn.utils.get_total_norm(direction)
    mine, theirs = ([nn.Parameter(torch.zeros_like(each)) for each in direction] for _ in range(2))
    for parameters in (mine, theirs):
        for parameter, each in zip(parameters, direction, strict=True):
            parameter.grad = each * (norm / total)
    versions = [parameter.grad._version for parameter in mine if parameter.grad is not None]
    found = clip_grad_norm_([*mine, nn.Parameter(torch.zeros(2))], 1.0)
    expected = nn.utils.clip_grad_norm_(theirs, 1.0)
    assert torch.tensor(found).equal(expected) or (math.isnan(found) and expected.isnan())
    for ours, right in zip(mine, theirs, strict=True):
        torch.testing.assert_close(ours.grad, right.grad, rtol=0, atol=0, equal_nan=True)
    if norm < 1:
        assert [parameter.grad._version for parameter in mine if parameter.grad is not None] == versions
