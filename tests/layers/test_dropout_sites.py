"""Where dropout is applied: layers with a known mask against their formulas, and every mask drawn by a whole model."""

import math
from collections import Counter

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.models.tiny import seq2seq
from transom.config import components
from transom.config.model import Seq2SeqConfig
from transom.data.batch import translation_batch
from transom.kernels import attention
from transom.kernels.attention import fused_attention
from transom.layers import dropout
from transom.layers.attention import Attention, AttentionArgs
from transom.layers.block import ParallelBlock, build_block
from transom.layers.embedding import Embedding
from transom.layers.feed_forward import FeedForward, GatedFeedForward
from transom.layers.position_encoding import Sinusoidal, sinusoidal_table
from transom.models.build import build_model

P = 0.25
"""A multiple of 1/256, which is not rounded."""


def mask(x: Tensor, p: float = P) -> Tensor:
    """Return a mask that depends on shape and probability only, so that formula and layer use the same one."""
    return (torch.arange(x.numel()) % 3 != 1).to(x.dtype).view(x.shape) / (1 - p)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, torch.Size]]:
    """Make every layer draw ``mask``; return the list of drawn (probability, shape)."""
    draws: list[tuple[float, torch.Size]] = []

    def known(x: Tensor, p: float) -> Tensor:
        draws.append((p, x.shape))
        return mask(x, p)

    monkeypatch.setattr(dropout, "draw_dropout_mask", known)
    monkeypatch.setattr(attention, "draw_dropout_mask", known)
    return draws


def random(*shape: int) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(*shape, dtype=torch.float64)


@pytest.mark.usefixtures("drawn")
def test_an_embedding_drops_the_sum_of_token_and_position() -> None:
    tokens = nn.Embedding(7, 4)
    layer = Embedding(tokens, Sinusoidal(Seq2SeqConfig(d_model=4, n_heads=1, max_seq_len=9), True), scale=True, dropout=P)
    ids, positions = torch.tensor([[3, 5, 1]]), torch.tensor([[0, 1, 2]])
    whole = tokens.weight[[3, 5, 1]] * 2.0 + sinusoidal_table(9, 4)[[0, 1, 2]]
    assert torch.allclose(layer(ids, positions)[0], whole * mask(whole), rtol=0, atol=1e-6)
    assert torch.allclose(layer.eval()(ids, positions)[0], whole, rtol=0, atol=1e-6)


@pytest.mark.usefixtures("drawn")
@pytest.mark.parametrize("placement", ["post", "pre", "sandwich"])
@pytest.mark.parametrize("cross", [False, True])
def test_a_block_drops_the_output_of_each_sub_layer_and_nothing_else(placement: str, cross: bool) -> None:
    block = build_block(Seq2SeqConfig(d_model=4, n_heads=2, d_ff=8, norm_placement=placement, dropout=P), cross).double()
    x, memory = random(2, 3, 4), random(2, 5, 4)
    for parameter in block.parameters():
        nn.init.normal_(parameter)
    sub_layers = [(lambda y: block.attn(y)[0], block.attn_residual), (block.ff, block.ff_residual)]
    if cross:
        sub_layers.insert(1, (lambda y: block.cross(y, memory=memory)[0], block.cross_residual))
    expected, m = x, mask(x)
    for f, residual in sub_layers:
        n = residual.norm
        if placement == "post":
            expected = n(expected + m * f(expected))
        else:
            y = f(n(expected))
            expected = expected + m * (residual.norm_out(y) if placement == "sandwich" else y)
    assert torch.allclose(block(x, memory=memory if cross else None)[0], expected, rtol=0, atol=1e-12)


@pytest.mark.usefixtures("drawn")
@pytest.mark.parametrize("cross", [False, True])
def test_a_parallel_block_drops_the_output_of_each_sub_layer(cross: bool) -> None:
    block = ParallelBlock(Seq2SeqConfig(d_model=4, n_heads=2, d_ff=8, norm_placement="parallel", dropout=P), cross).double()
    x, memory = random(2, 3, 4), random(2, 5, 4)
    y, m = block.norm(x), mask(x)
    expected = x + m * block.attn(y)[0] + m * block.ff(y)
    if block.cross is not None:
        expected = expected + m * block.cross(y, memory=memory)[0]
    assert torch.allclose(block(x, memory=memory if cross else None)[0], expected, rtol=0, atol=1e-12)


@pytest.mark.usefixtures("drawn")
def test_feed_forward_networks_drop_the_hidden_units() -> None:
    x = random(2, 3, 4)
    plain = FeedForward(components.FeedForwardConfig(), 4, 8, P).double()
    hidden = F.relu(plain.up(x))
    assert torch.allclose(plain(x), plain.down(hidden * mask(hidden)), rtol=0, atol=1e-12)
    gated = GatedFeedForward(components.GatedFeedForwardConfig(kind="swiglu"), 4, 8, P).double()
    hidden = F.silu(gated.gate(x)) * gated.up(x)
    assert torch.allclose(gated(x), gated.down(hidden * mask(hidden)), rtol=0, atol=1e-12)


@pytest.mark.usefixtures("drawn")
@pytest.mark.parametrize("softcap", [None, 1e6])
def test_attention_drops_the_weights_after_the_softmax(softcap: float | None) -> None:
    """Both training paths: the custom gradient and, with a softcap (here so large that it has no effect), the equation."""
    config = components.MultiHeadAttentionConfig(softcap=softcap)
    layer = Attention(Seq2SeqConfig(d_model=4, n_heads=2, attention_dropout=P, attention=config)).double()
    x = random(2, 5, 4)
    q, k, v = (w(x).view(2, 5, 2, 2).transpose(1, 2) for w in (layer.q, layer.k, layer.v))
    weights = (q @ k.transpose(-2, -1) / math.sqrt(2)).softmax(-1)
    z = (weights * mask(weights)) @ v
    assert torch.allclose(layer(x)[0], layer.o(z.transpose(1, 2).reshape(2, 5, 4)), rtol=0, atol=1e-10)


def test_the_fused_kernel_drops_the_weights_after_the_softmax() -> None:
    torch.manual_seed(1)
    nothing, values = torch.zeros(1, 1, 64, 8), torch.eye(64)[None, None]
    weights = fused_attention(nothing, nothing, values, AttentionArgs(dropout=P))  # identity as values: the weights themselves, all alike
    assert weights.unique().tolist() == pytest.approx([0.0, 1 / 64 / (1 - P)])
    assert abs((weights == 0).double().mean().item() - P) < 5 * (P * (1 - P) / 64**2) ** 0.5  # five deviations


def test_a_whole_model_drops_where_the_paper_does_and_nowhere_else(drawn: list[tuple[float, torch.Size]]) -> None:
    """Embeddings and each sub-layer's output (Vaswani et al. 2017, section 5.4); weights and hidden units have their own rates."""
    rates = {"dropout": 0.125, "attention_dropout": 0.25, "feed_forward_dropout": 0.5}
    sizes = {"d_model": 4, "d_ff": 8, "n_encoder_layers": 2, "n_decoder_layers": 3, "max_seq_len": 16}
    model = build_model(seq2seq(**sizes, **rates, source_vocab_size=19, target_vocab_size=19))
    batch = translation_batch([[3, 4, 5, 6, 7], [8, 9]], [[4, 5, 6], [7, 8]], range(2))
    (rows, s), (_, t) = batch.source.tokens.shape, batch.decoder_input.tokens.shape
    assert s != t
    model.train()(batch)
    assert Counter((p, tuple(shape)) for p, shape in drawn) == {
        (0.125, (rows, s, 4)): 1 + 2 * 2,
        (0.125, (rows, t, 4)): 1 + 3 * 3,
        (0.25, (rows, 2, s, s)): 2,
        (0.25, (rows, 2, t, t)): 3,
        (0.25, (rows, 2, t, s)): 3,
        (0.5, (rows, s, 8)): 2,
        (0.5, (rows, t, 8)): 3,
    }
    drawn.clear()
    model.eval()(batch)
    assert not drawn
