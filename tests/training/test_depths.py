"""Mixtures of depths in training: the same update however a batch is sliced, tokens that learn to decide alone, and what is recorded."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.test_routers import SIZES, TRAINING, stepped
from tests.training.test_run import MODEL, sit
from transom.checkpoints.run_folder import RunFolder
from transom.config.model import Decoder, Seq2Seq
from transom.data.batch import LanguageBatch, Sequences
from transom.layers.depth import DepthRouter
from transom.models.build import build_model
from transom.models.network import Network
from transom.training.events import Event, Stepped
from transom.training.objectives.objective import CrossEntropy
from transom.training.optimizer import build_optimizer
from transom.training.step import Stepper

DEPTH = {"kind": "mixture", "capacity": 0.5, "every": 1, "weight": 0.7}


def translator(depth: dict[str, Any]) -> Network:
    torch.manual_seed(1)
    sides = {"n_encoder_layers": 2, "n_decoder_layers": 2, "source_vocab_size": 12, "target_vocab_size": 12}
    return build_model(Seq2Seq.model_validate(SIZES | sides | {"depth": depth})).double()


@pytest.mark.parametrize("n_slices", [4, 32])
def test_a_batch_gives_the_same_update_however_it_is_sliced(n_slices: int) -> None:
    whole, result = stepped(translator(DEPTH), 1)
    sliced, again = stepped(translator(DEPTH), n_slices)
    assert (result.grad_norm, result.loss) == pytest.approx((again.grad_norm, again.loss), abs=1e-9)
    tokens, chosen, _ = (result.measured[f"routed_{name}"] for name in ("tokens", "chosen", "alone"))
    assert result.measured == again.measured and tokens > chosen >= 0.5 * tokens
    for a, b in zip(whole.parameters(), sliced.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-8)
    assert result.grad_norm != pytest.approx(stepped(translator(DEPTH | {"weight": 0.0}), 1)[1].grad_norm, rel=1e-6), "the loss is in it"


@pytest.mark.long
def test_it_learns_and_tokens_learn_to_decide_alone() -> None:
    torch.manual_seed(3)
    depth = {"kind": "mixture", "capacity": 0.25, "weight": 0.1}
    model = build_model(Decoder.model_validate(SIZES | {"n_layers": 2, "vocab_size": 30, "depth": depth}))
    with torch.no_grad():
        next(m for m in model.modules() if isinstance(m, DepthRouter)).map.bias.fill_(2.0)  # at first nearly all would pass
    rows = torch.randint(3, 30, (40, 16))
    batch = LanguageBatch(Sequences.pad([[2, *row[:-1]] for row in rows.tolist()]), rows, tuple(range(40)))
    stepper = Stepper(model, build_optimizer(model, TRAINING.optimizer), TRAINING, torch.float32, CrossEntropy(TRAINING.label_smoothing))
    results = [stepper.step([batch], 3e-3) for _ in range(200)]
    shares = [result.measured["routed_alone"] / result.measured["routed_tokens"] for result in results]
    assert results[-1].nll < 0.95 * results[0].nll
    assert shares[0] > 0.8 and 0.15 < shares[-1] < 0.35
    assert all(result.measured["routed_chosen"] == 40 * 4 for result in results)


def test_two_processes_make_the_steps_of_one_and_the_record_has_the_shares(tmp_path: Path) -> None:
    exact = {"precision": "fp32", "max_steps": 4, "checkpoint_every": 4, "validate_every": 4, "validate_bleu": 0, "average": "none"}
    runs = []
    for n in (1, 2):
        seen: list[Event] = []
        sit(tmp_path / str(n), seen.append, model={**MODEL, "dropout": 0.0, "depth": DEPTH}, processes=n, **exact)
        runs.append([event for event in seen if isinstance(event, Stepped)])
    for one, two in zip(*runs, strict=True):
        assert (one.loss, one.grad_norm) == pytest.approx((two.loss, two.grad_norm), rel=2e-4)
    lines = [[line for line in RunFolder.open(tmp_path / str(n)).metrics.read() if line["kind"] == "train"] for n in (1, 2)]
    for one, two in zip(*lines, strict=True):
        assert 0.5 <= one["depth_share"] == two["depth_share"] < 0.7
        assert 0 < one["depth_alone"] < 1 and one["depth_alone"] == pytest.approx(two["depth_alone"], abs=0.02)
