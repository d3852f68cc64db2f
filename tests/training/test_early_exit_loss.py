"""Losses behind every block: their sum written out, the same however a batch is sliced, beside a mixture's losses."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.training.test_router_losses import LOSS, SIZES
from transom.config.model import DecoderConfig
from transom.config.training import AdamConfig
from transom.data.batch import LanguageBatch, PaddedSequences
from transom.models.base import Network
from transom.models.build import build_model
from transom.tasks.language.schema import LanguageRecipe, LanguageTrainingConfig
from transom.training.losses import cross_entropy
from transom.training.objectives.early_exit import add_early_exit_losses
from transom.training.objectives.r_drop import choose_text_loss
from transom.training.optimizer import build_optimizer
from transom.training.train_step import StepResult, TrainStep

ROWS = [[2, 5, 8, 4, 3], [2, 7], [2, 9, 9], [2, 4, 6, 6]]


def batch(rows: list[list[int]]) -> LanguageBatch:
    return LanguageBatch(PaddedSequences.pad(rows), PaddedSequences.pad([[*row[1:], 2] for row in rows]).tokens, tuple(range(len(rows))))


def model(**fields: Any) -> Network:
    torch.manual_seed(1)
    return build_model(DecoderConfig.model_validate(SIZES | {"n_layers": 3, "vocab_size": 12} | fields)).double()


def stepped(network: Network, kind: str, n_micro_batches: int = 1, r_drop: float = 0.0) -> StepResult:
    fields = {"early_exit_loss": kind, "optimizer": AdamConfig(), "max_grad_norm": None, "label_smoothing": 0.1, "r_drop": r_drop}
    training = LanguageTrainingConfig.model_validate(fields)
    objective = add_early_exit_losses(choose_text_loss(training), network, training.early_exit_loss)
    train_step = TrainStep(network, build_optimizer(network, training.optimizer), training, torch.float32, objective)
    return train_step.step([batch(ROWS[i::n_micro_batches]) for i in range(n_micro_batches)], 0.01)


@pytest.mark.parametrize(("kind", "weights"), [("linear", [1 / 6, 2 / 6, 3 / 6]), ("uniform", [1 / 3] * 3), ("none", [0.0, 0.0, 1.0])])
@pytest.mark.parametrize("placement", ["post", "pre", "parallel"])
def test_the_gradient_is_that_of_the_losses_written_out(kind: str, weights: list[float], placement: str) -> None:
    network, all_of = model(norm_placement=placement), batch(ROWS)
    heard: list[Tensor] = []
    for block in network.get_submodule("decoder.blocks").children():
        block.register_forward_hook(lambda _, given, out: heard.append(out[0]))
    network(all_of)
    norm = network.get_submodule("decoder").norm or (lambda x: x)
    losses = [cross_entropy(network.unembedding(norm(x))[all_of.loss_mask], all_of.labels[all_of.loss_mask], 0.1) for x in heard]
    mean = sum(weight * loss for weight, (loss, _) in zip(weights, losses, strict=True)) / all_of.n_target_tokens
    gradients = torch.autograd.grad(mean, list(network.parameters()), allow_unused=True)
    expected = torch.cat([g.flatten() for g in gradients if g is not None]).norm().item()
    result = stepped(network, kind)
    assert result.grad_norm == pytest.approx(expected, rel=1e-9)
    assert (result.loss, result.nll) == pytest.approx([x.item() for x in losses[-1]], rel=1e-9), "what is told is the last block's"


def test_a_batch_gives_the_same_update_however_it_is_sliced_beside_a_mixture_too() -> None:
    for fields in ({}, {"feed_forward": LOSS}):
        whole, sliced = model(**fields), model(**fields)
        one, four = stepped(whole, "linear"), stepped(sliced, "linear", 4)
        assert one.grad_norm == pytest.approx(four.grad_norm, abs=1e-9) and one.aux_metrics == four.aux_metrics
        assert ("max_expert_load" in one.aux_metrics) == bool(fields)
        for a, b in zip(whole.parameters(), sliced.parameters(), strict=True):
            assert torch.allclose(a, b, rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    "fields",
    [
        {"model": {"kind": "recurrent-decoder"}, "training": {"early_exit_loss": "linear"}},
        {"model": {"depth": "mod"}, "training": {"early_exit_loss": "uniform"}},
        {"model": {"depth": "mod"}, "decoding": {"early_exit_threshold": 0.9}},
    ],
    ids=str,
)
def test_networks_without_exits_are_refused(fields: dict[str, Any]) -> None:
    fields = {"model": {"kind": "decoder"} | fields["model"], **{name: value for name, value in fields.items() if name != "model"}}
    with pytest.raises(ValueError, match=r"need model\.kind = 'decoder' with model\.depth = 'full'"):
        LanguageRecipe.model_validate({"task": "language", "data": {"train": {"files": "a.txt"}}} | fields)


def test_two_readings_without_dropout_give_the_update_of_one_beside_exits_and_a_mixture() -> None:
    for fields in ({}, {"feed_forward": LOSS}):
        once, twice = stepped(model(**fields), "linear"), stepped(model(**fields), "linear", r_drop=4.0)
        assert twice.grad_norm == pytest.approx(once.grad_norm, abs=1e-9)
        assert (twice.loss, twice.nll) == pytest.approx((once.loss, once.nll), abs=1e-9)
