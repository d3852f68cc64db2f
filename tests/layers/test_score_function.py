"""Custom score functions: with the dot product as one, model outputs are unchanged; kernels for the dot product are not used."""

import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor

from tests.models.combinations import FAMILIES, TARGET
from transom.config.architecture import ModelConfig
from transom.config.model import AnyModel
from transom.data.batch import Batch, LanguageBatch, PaddedSequences, TranslationBatch
from transom.decoding.backends.decoder_backend import build_decoder_backend
from transom.kernels.block_sparse import plan_tiled_mask
from transom.layers.attention import Attention, AttentionArgs, explicit_attention
from transom.layers.dispatch import kernels_of, selected_path
from transom.layers.masks.mask_rules import DistanceRule, TokenPositions
from transom.models.base import GenerativeModel
from transom.models.build import build_model

SMALL = {"d_model": 32, "d_ff": 16, "n_heads": 2, "d_head": 16, "dropout": 0.0}
LONG = 1100


def dot_product(q: Tensor, k: Tensor) -> Tensor:
    return torch.einsum("bhqd,bhkd->bhqk", q, k) / q.shape[-1] ** 0.5


def config_of(family: dict[str, object], **fields: object) -> ModelConfig:
    config: ModelConfig = TypeAdapter(AnyModel).validate_python(family | SMALL | fields)
    return config


def scored(model: GenerativeModel) -> GenerativeModel:
    for module in model.modules():
        if isinstance(module, Attention):
            module.score = dot_product
    return model


def built(config: ModelConfig) -> GenerativeModel:
    torch.manual_seed(1)
    model = build_model(config).double()
    assert isinstance(model, GenerativeModel)
    return model


@pytest.mark.parametrize("family", [FAMILIES[0], FAMILIES[3], FAMILIES[-1]], ids=["seq2seq", "decoder", "prefix"])
@pytest.mark.parametrize(
    "fields", [{}, {"n_kv_heads": 1, "attention": {"softcap": 3.0, "sinks": True}, "position": "alibi"}], ids=["plain", "rich"]
)
def test_the_dot_product_as_a_score_gives_the_same_logits_and_gradients(family: dict[str, object], fields: dict[str, object]) -> None:
    config = config_of(family, **fields)
    batch: Batch = (
        TranslationBatch(TARGET, TARGET, TARGET.tokens, (0, 1))
        if family["kind"] == "seq2seq"
        else LanguageBatch(TARGET, TARGET.tokens, (0, 1))
    )
    plain, mine = built(config).train(), scored(built(config)).train()
    for model in (plain, mine):
        model(batch).square().sum().backward()
    assert torch.allclose(plain(batch), mine(batch), rtol=0, atol=1e-12)
    for expected, found in zip(plain.parameters(), mine.parameters(), strict=True):
        assert (expected.grad is None) == (found.grad is None)
        assert expected.grad is None or found.grad is None or torch.allclose(expected.grad, found.grad, rtol=0, atol=1e-10)


def test_cached_steps_equal_the_whole_and_no_backend_takes_its_place() -> None:
    model = scored(built(config_of(FAMILIES[3]))).eval()
    assert build_decoder_backend(model) is model
    assert build_decoder_backend(scored(built(config_of(FAMILIES[0]))).eval()) is not None
    tokens = torch.tensor([[1, 5, 8, 4, 6]])
    with torch.no_grad():
        whole = model(LanguageBatch(PaddedSequences.pad(tokens.tolist()), tokens, (0,)))
        cache = model.start(PaddedSequences.pad([[1, 5]]), 1, 8)
        steps = [model.step(tokens[:, i : i + 1], cache) for i in range(1, 5)]
    assert torch.allclose(torch.cat(steps, 1), whole[:, 1:], rtol=0, atol=1e-12)


def test_windows_of_long_rows_are_computed_by_the_equation() -> None:
    config = config_of(FAMILIES[3], max_seq_len=LONG, n_layers=1, attention={"pattern": {"kind": "window", "size": 8}})
    tokens = torch.randint(3, 9, (1, LONG), generator=torch.Generator().manual_seed(2))
    batch = LanguageBatch(PaddedSequences.pad(tokens.tolist()), tokens, (0,))
    with torch.no_grad():
        assert torch.allclose(scored(built(config)).eval()(batch), built(config).eval()(batch), rtol=0, atol=1e-10)


def test_no_kernel_takes_another_score_for_a_dot_product() -> None:
    q = torch.randn(1, 2, 300, 16)
    places = TokenPositions.single_sequence(300)
    tiles = plan_tiled_mask(DistanceRule(-8, 8), places, places)
    args = AttentionArgs(score=lambda q, k: -torch.cdist(q, k))
    assert selected_path("attention", q, q, q, args) == selected_path("block_sparse_attention", q, q, q, tiles, args) == "reference"
    if kernels_of("attention"):
        assert "reference" not in (
            selected_path("attention", q, q, q, AttentionArgs()),
            selected_path("block_sparse_attention", q, q, q, tiles, AttentionArgs()),
        )
    weights = (-torch.cdist(q, q)).softmax(-1)
    assert torch.allclose(explicit_attention(q, q, q, args), weights @ q, rtol=0, atol=1e-5)
