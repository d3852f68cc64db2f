"""Mixture of depths: both paths agree; which tokens are selected and skipped."""

import math
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from tests.models.combinations import FAMILIES, LABELS, TARGET, batch_for
from transom.config.depth import MixtureOfDepthsConfig
from transom.config.model import AnyModel, DecoderConfig
from transom.data.batch import LanguageBatch, PaddedSequences
from transom.layers.context import BlockContext
from transom.layers.mixture_of_depths import DepthRouter, all_tokens, router_bce_sum, selected_tokens
from transom.models.base import LanguageModel, Network
from transom.models.build import build_model

SIZES: dict[str, Any] = {"d_model": 12, "n_heads": 6, "n_kv_heads": 3, "d_ff": 8, "max_seq_len": 16, "dropout": 0.0}
SEQ2SEQ, DECODER = FAMILIES[0] | SIZES, FAMILIES[3] | SIZES
ENCODER = {"kind": "text-classifier", "n_layers": 2, "vocab_size": 9, "classes": ["a", "b", "c"], "pooler_dropout": 0.0} | SIZES
REAL = torch.tensor([[True] * 6, [True] * 3 + [False] * 3, [False] * 6])


def built(fields: dict[str, Any], dtype: torch.dtype = torch.float64) -> Network:
    torch.manual_seed(1)
    return build_model(TypeAdapter(AnyModel).validate_python(fields)).to(dtype).train()


def routers(model: Network) -> list[DepthRouter]:
    return [module for module in model.modules() if isinstance(module, DepthRouter)]


def mixture(capacity: float = 0.5, every: int = 2) -> dict[str, Any]:
    return {"depth": {"kind": "mod", "capacity": capacity, "every": every}}


@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@pytest.mark.parametrize(
    "fields",
    [
        SEQ2SEQ | mixture(0.4, 1),
        SEQ2SEQ | mixture(0.7) | {"position": "relative", "norm_placement": "parallel", "attention": {"value_residual": "learned"}},
        DECODER | mixture(0.3) | {"position": "alibi", "attention": {"pattern": {"kind": "window", "size": 2}, "sinks": True}},
        DECODER | mixture(0.6, 1) | {"position": "rotary", "norm": "batchnorm", "attention": {"qk_norm": "rmsnorm"}},
        ENCODER | mixture(0.4) | {"attention": {"value_residual": "fixed", "pattern": "logsparse"}},
    ],
    ids=str,
)
@pytest.mark.parametrize("training", [True, False])
def test_chosen_tokens_alone_are_all_tokens_with_the_others_masked(
    fields: dict[str, Any], dtype: torch.dtype, close: float, training: bool
) -> None:
    model = built(fields, dtype).train(training)
    batch, results = batch_for(model.config), []  # type: ignore[arg-type]
    for path in (selected_tokens, all_tokens):
        for router in routers(model):
            router.path = path
        model.zero_grad()
        hidden = model.last_hidden_state(batch)
        hidden = hidden[TARGET.segments > 0] if hidden.dim() == 3 else hidden
        (hidden * torch.linspace(-1, 1, hidden.numel(), dtype=dtype).view_as(hidden)).sum().backward()
        results.append([hidden, *(torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters())])
    for fast, slow in zip(*results, strict=True):
        assert torch.allclose(fast, slow, rtol=0, atol=close * max(1.0, slow.abs().max().item()))
    assert all(router.map.weight.grad is not None and router.map.weight.grad.any() for router in routers(model)) or not training


def router(capacity: float) -> DepthRouter:
    torch.manual_seed(2)
    return DepthRouter(MixtureOfDepthsConfig(capacity=capacity), 4).double()


@pytest.mark.parametrize("capacity", [0.125, 0.5, 0.7, 1.0])
@torch.no_grad()
def test_it_is_the_formula_token_by_token(capacity: float) -> None:
    layer, x, shapes = router(capacity), torch.randn(3, 6, 4, dtype=torch.float64), []

    def block(y: Tensor, *_: Any) -> tuple[Tensor, None]:
        shapes.append(tuple(y.shape))
        return y + y.sin(), None

    for training in (True, False):
        layer.train(training)
        scores = (x @ layer.map.weight[0] + layer.map.bias).tolist()
        chosen = layer.select(torch.tensor(scores, dtype=torch.float64), REAL)
        for row, (there, r) in enumerate(zip(REAL.tolist(), scores, strict=True)):
            n = math.ceil(capacity * sum(there))
            best = sorted((i for i in range(6) if there[i]), key=lambda i: -r[i])[:n]
            expected = best if training else [i for i in range(6) if there[i] and r[i] > 0]
            assert chosen[row].nonzero()[:, 0].tolist() == sorted(expected), "padding is never selected"
        shapes.clear()
        found, gate = layer(x, block, BlockContext(token_mask=REAL)), torch.tensor(scores, dtype=torch.float64) * chosen
        assert torch.allclose(found, x + gate[..., None] * x.sin(), rtol=0, atol=1e-10)
        assert shapes == [(3, int(chosen.sum(1).max()), 4)], "the block runs on selected tokens only"


@torch.no_grad()
def test_training_chooses_by_what_comes_later_and_evaluation_does_not() -> None:
    model = built(DECODER | mixture(0.25, 1) | {"n_layers": 1})
    (only,) = routers(model)
    r = torch.tensor([[0.3, -0.2, 0.1, 0.2]])
    later = torch.tensor([[0.3, -0.2, 0.1, 0.9]])
    assert only.select(r, None).tolist() == [[True, False, False, False]] != only.select(later, None).tolist()
    only.eval()
    assert only.select(r, None).tolist() == only.select(later, None).tolist() == [[True, False, True, True]]


@torch.no_grad()
def test_a_block_that_no_token_chose_is_skipped() -> None:
    model = built(DECODER | mixture()).eval()
    (only,) = routers(model)
    only.map.bias.fill_(-1e3)
    blocks = model.get_submodule("decoder.blocks")
    blocks[1].register_forward_hook(lambda *_: pytest.fail("nobody passes"))
    assert isinstance(model, LanguageModel)
    whole, text = model(LanguageBatch(TARGET, LABELS, (0, 1))), PaddedSequences.pad(TARGET.tokens[:, :1].tolist())
    cache = model.start(model.encode(text), 1, 4)
    steps = [model.step(TARGET.tokens[:, i : i + 1], cache) for i in range(4)]
    assert torch.allclose(torch.cat(steps, 1)[0], whole[0], rtol=0, atol=1e-10)


def test_the_loss_is_its_equation() -> None:
    r, chosen = torch.randn(7, dtype=torch.float64), torch.tensor([True, False, True, True, False, False, True])
    expected = -sum(math.log(1 / (1 + math.exp(-x if y else x))) for x, y in zip(r.tolist(), chosen.tolist(), strict=True))
    assert router_bce_sum(r, chosen).item() == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"feed_forward": "moe"}, "cannot be combined with feed_forward.kind = 'moe'; change one of them"),
        ({"depth": {"kind": "mod", "every": 1}, "attention": {"value_residual": "fixed"}}, "expected depth.every > 1, found 1"),
    ],
)
def test_what_does_not_go_together_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        DecoderConfig.model_validate({"depth": "mod"} | fields)
