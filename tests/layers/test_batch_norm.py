"""Batch normalization: agreement with PyTorch on unpadded tokens, running statistics updated once per step, and its leak between tokens."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from transom.config.components import BatchNormConfig as Component
from transom.config.model import DecoderConfig
from transom.data.batch import LanguageBatch, PaddedSequences
from transom.layers.context import LayerContext
from transom.layers.norm import BatchNorm, BatchStatistics
from transom.layers.observe import ActivationRecorder
from transom.models.build import build_model

REAL = torch.tensor([[True] * 5, [True] * 2 + [False] * 3])
CLOSE = {"rtol": 0, "atol": 1e-10}


def norms() -> tuple[BatchNorm, nn.BatchNorm1d]:
    """Return our layer and PyTorch's with the same gain and bias."""
    torch.manual_seed(1)
    ours, theirs = BatchNorm(Component(eps=1e-3, momentum=0.3), 6).double(), nn.BatchNorm1d(6, eps=1e-3, momentum=0.3).double()
    for parameter, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        nn.init.normal_(parameter)
        other.data.copy_(parameter)
    return ours, theirs


def observed(norm: BatchNorm, x: Tensor, token_mask: Tensor) -> tuple[Tensor, BatchStatistics]:
    """Normalize, and return the statistics that an objective reads."""
    norm.address = "norm"
    recorder = ActivationRecorder(["norm.*"])
    y: Tensor = norm(x, LayerContext(token_mask, recorder.start_pass("")))
    return y, BatchStatistics(*(recorder.activations[f"norm.{part}"].detach() for part in BatchStatistics._fields))


def draw(seed: int) -> Tensor:
    return 2 * torch.randn(2, 5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) + 1


def test_it_is_torchs_over_true_tokens_in_training_and_after_some_steps_in_evaluation() -> None:
    ours, theirs = norms()
    for seed in range(4):
        inputs = [draw(seed).requires_grad_(), draw(seed).requires_grad_()]
        (found, statistics), expected = observed(ours, inputs[0], REAL), theirs(inputs[1][REAL])
        found = found[REAL]
        assert torch.allclose(found, expected, **CLOSE)
        for y in (found, expected):
            (y * torch.arange(6)).square().sum().backward()
        assert torch.allclose(inputs[0].grad, inputs[1].grad, **CLOSE)
        for parameter, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert torch.allclose(parameter.grad, other.grad, **CLOSE)
        ours.update_running_statistics([statistics])
    x = draw(9)
    assert torch.allclose(ours.eval()(x, LayerContext(token_mask=REAL)), theirs.eval()(x.flatten(0, 1)).view_as(x), **CLOSE)
    assert torch.allclose(ours(x[:1, :1]), ours(x)[:1, :1], **CLOSE), "in evaluation tokens are independent"


def test_padding_counts_in_nothing_and_one_token_alone_gives_the_shift() -> None:
    ours, x = norms()[0], draw(1)
    noisy = torch.where(REAL[:, :, None], x, 50.0)
    assert torch.equal(ours(noisy, LayerContext(token_mask=REAL))[REAL], ours(x, LayerContext(token_mask=REAL))[REAL])
    assert not torch.allclose(ours(noisy)[REAL], ours(x)[REAL], **CLOSE)
    assert torch.allclose(ours(x[:1, :1])[0, 0], ours.bias, **CLOSE)
    assert ours(x, LayerContext(token_mask=torch.zeros_like(REAL))).isfinite().all(), "a micro-batch may have no token"


def test_a_step_moves_the_statistics_once_by_all_of_its_passes_together() -> None:
    (whole, _), (sliced, _), (still, _) = norms(), norms(), norms()
    x = draw(3)
    whole.update_running_statistics([observed(whole, x, REAL)[1]])
    sliced.update_running_statistics([observed(sliced, x[row : row + 1], REAL[row : row + 1])[1] for row in range(2)])
    observed(still, x, REAL)
    still.update_running_statistics([])
    assert torch.allclose(whole.mean, sliced.mean, **CLOSE) and torch.allclose(whole.variance, sliced.variance, **CLOSE)
    assert whole.mean.any() and not still.mean.any() and torch.equal(still.variance, torch.ones_like(still.variance))
    assert not torch.allclose(sliced(x[:1])[0], whole(x)[0], rtol=0, atol=1e-3), "micro-batches are normalized separately"


def test_a_pass_that_is_computed_again_counts_once() -> None:
    (norm, _), x = norms(), draw(3).requires_grad_()
    norm.address = "norm"
    recorder = ActivationRecorder(["norm.*"])
    ctx = LayerContext(REAL, recorder.start_pass(""))
    checkpoint(norm, x, ctx, use_reentrant=False).sum().backward()
    assert [sorted(each) for each in recorder.passes] == [["norm.mean", "norm.n_tokens", "norm.variance", "norm.x"]]


@pytest.mark.parametrize("placement", ["post", "pre", "sandwich", "parallel"])
@torch.no_grad()
def test_a_decoder_leaks_in_training_and_is_causal_in_evaluation(placement: str) -> None:
    torch.manual_seed(1)
    sizes: dict[str, Any] = {"d_model": 8, "n_heads": 2, "d_ff": 12, "n_layers": 2, "vocab_size": 9, "dropout": 0.0}
    model = build_model(DecoderConfig.model_validate(sizes | {"norm": "batchnorm", "norm_placement": placement})).double()
    rows = [[1, 5, 8, 4], [1, 7, 3, 6]]

    def logits(*changes: tuple[int, int]) -> Tensor:
        text = PaddedSequences.pad([[2 if (r, t) in changes else token for t, token in enumerate(row)] for r, row in enumerate(rows)])
        return model(LanguageBatch(text, text.tokens, (0, 1)))[0, :3]

    for of_the_future in ((0, 3), (1, 0)):  # a later token of the row, and a token of another row
        assert not torch.allclose(model.train() and logits(of_the_future), logits(), rtol=0, atol=1e-6)
        assert torch.allclose(model.eval() and logits(of_the_future), logits(), **CLOSE)
