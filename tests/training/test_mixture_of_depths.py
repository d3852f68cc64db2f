"""Mixtures of depths in training: the same update however a batch is sliced, tokens that learn to decide alone, and what is recorded."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.test_router_losses import SIZES, TRAINING, stepped
from tests.training.test_train_loop import MODEL, sit
from transom.checkpoints.run_folder import RunFolder
from transom.config.model import DecoderConfig, Seq2SeqConfig
from transom.data.batch import LanguageBatch, PaddedSequences
from transom.layers.mixture_of_depths import DepthRouter
from transom.models.base import Network
from transom.models.build import build_model
from transom.training.events import Event, StepFinished
from transom.training.objectives.objective import CrossEntropy
from transom.training.optimizer import build_optimizer
from transom.training.train_step import TrainStep

DEPTH = {"kind": "mod", "capacity": 0.5, "every": 1, "aux_loss_coef": 0.7}


def translator(depth: dict[str, Any]) -> Network:
    torch.manual_seed(1)
    sides = {"n_encoder_layers": 2, "n_decoder_layers": 2, "source_vocab_size": 12, "target_vocab_size": 12}
    return build_model(Seq2SeqConfig.model_validate(SIZES | sides | {"depth": depth})).double()


@pytest.mark.long
@pytest.mark.parametrize("n_micro_batches", [4, 32])
def test_a_batch_gives_the_same_update_however_it_is_sliced(n_micro_batches: int) -> None:
    whole, result = stepped(translator(DEPTH), 1)
    sliced, again = stepped(translator(DEPTH), n_micro_batches)
    assert (result.grad_norm, result.loss) == pytest.approx((again.grad_norm, again.loss), abs=1e-9)
    tokens, chosen, _ = (result.aux_metrics[f"routed_{name}"] for name in ("tokens", "chosen", "causal"))
    assert result.aux_metrics == again.aux_metrics and tokens > chosen >= 0.5 * tokens
    for a, b in zip(whole.parameters(), sliced.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-8)
    assert result.grad_norm != pytest.approx(stepped(translator(DEPTH | {"aux_loss_coef": 0.0}), 1)[1].grad_norm, rel=1e-6), (
        "the loss is in it"
    )


@pytest.mark.long
def test_it_learns_and_tokens_learn_to_decide_alone() -> None:
    torch.manual_seed(3)
    depth = {"kind": "mod", "capacity": 0.25, "aux_loss_coef": 0.1}
    model = build_model(DecoderConfig.model_validate(SIZES | {"n_layers": 2, "vocab_size": 30, "depth": depth}))
    with torch.no_grad():
        next(m for m in model.modules() if isinstance(m, DepthRouter)).map.bias.fill_(2.0)  # at first nearly all would pass
    rows = torch.randint(3, 30, (40, 16))
    batch = LanguageBatch(PaddedSequences.pad([[2, *row[:-1]] for row in rows.tolist()]), rows, tuple(range(40)))
    train_step = TrainStep(
        model, build_optimizer(model, TRAINING.optimizer), TRAINING, torch.float32, CrossEntropy(TRAINING.label_smoothing)
    )
    results = [train_step.step([batch], 3e-3) for _ in range(200)]
    shares = [result.aux_metrics["routed_causal"] / result.aux_metrics["routed_tokens"] for result in results]
    assert results[-1].nll < 0.95 * results[0].nll
    assert shares[0] > 0.8 and 0.15 < shares[-1] < 0.35
    assert all(result.aux_metrics["routed_chosen"] == 40 * 4 for result in results)


@pytest.mark.long
def test_two_processes_make_the_steps_of_one_and_the_record_has_the_shares(tmp_path: Path) -> None:
    exact = {"precision": "fp32", "max_steps": 4, "checkpoint_every": 4, "validate_every": 4, "validate_bleu": 0, "average": "none"}
    runs = []
    for n in (1, 2):
        seen: list[Event] = []
        sit(tmp_path / str(n), seen.append, model={**MODEL, "dropout": 0.0, "depth": DEPTH}, parallel={"data": n}, **exact)
        runs.append([event for event in seen if isinstance(event, StepFinished)])
    for one, two in zip(*runs, strict=True):
        assert (one.loss, one.grad_norm) == pytest.approx((two.loss, two.grad_norm), rel=2e-4)
    lines = [[line for line in RunFolder.open(tmp_path / str(n)).metrics.read() if line["kind"] == "train"] for n in (1, 2)]
    for one, two in zip(*lines, strict=True):
        assert 0.5 <= one["mod_fraction"] == two["mod_fraction"] < 0.7
        assert 0 < one["mod_fraction_causal"] < 1 and one["mod_fraction_causal"] == pytest.approx(two["mod_fraction_causal"], abs=0.02)
