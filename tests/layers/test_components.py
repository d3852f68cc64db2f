"""Norms, position encodings, embeddings, feed-forward networks, masks and blocks against their equations."""

import copy
import math

import pytest
import torch
from torch import nn

from transom.config import components
from transom.config.model import Seq2SeqConfig
from transom.config.schema import ComponentConfig
from transom.layers.attention import causal_mask, non_padding_mask, same_segment_mask
from transom.layers.block import build_block
from transom.layers.embedding import Embedding
from transom.layers.feed_forward import FeedForward
from transom.layers.norm import LayerNorm, build_norm
from transom.layers.position_encoding import Sinusoidal, sinusoidal_table


def test_layer_norm_is_its_equation() -> None:
    torch.manual_seed(1)
    layer = LayerNorm(components.LayerNormConfig(eps=1e-3), 5).double()
    nn.init.normal_(layer.weight), nn.init.normal_(layer.bias)
    x = torch.randn(2, 3, 5, dtype=torch.float64)
    for vector, out in zip(x.reshape(-1, 5).tolist(), layer(x).reshape(-1, 5), strict=True):
        mean = sum(vector) / 5
        variance = sum((e - mean) ** 2 for e in vector) / 5
        normal = torch.tensor([(e - mean) / math.sqrt(variance + 1e-3) for e in vector], dtype=torch.float64)
        assert torch.allclose(out, normal * layer.weight + layer.bias, rtol=0, atol=1e-12)


def test_layer_norm_keeps_float32_statistics_in_bf16() -> None:
    layer = LayerNorm(components.LayerNormConfig(), 512)
    x = (1000 + torch.randn(4, 512)).bfloat16()
    assert torch.allclose(layer.bfloat16()(x).float(), layer.double()(x.double()).float(), atol=2e-2)


@pytest.mark.parametrize("config", [components.LayerNormConfig(), components.LayerNormConfig(bias=False), components.RmsNormConfig()])
def test_gains_get_their_gradients_added_up_in_float32(config: ComponentConfig) -> None:
    torch.manual_seed(1)
    norm = build_norm(config, 64)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.normal_(1.0, 0.3)
    exact = copy.deepcopy(norm).double()
    x = (2 * torch.randn(4096, 64) + 1).bfloat16().requires_grad_()
    grad = torch.randn(4096, 64).bfloat16()
    found = torch.autograd.grad(norm(x), (x, *norm.parameters()), grad)
    expected = torch.autograd.grad(exact(y := x.detach().double().requires_grad_()), (y, *exact.parameters()), grad.double())
    for a, b in zip(found, expected, strict=True):
        assert (a.double() - b).norm() / b.norm() < 0.01


def test_sinusoids_are_their_equation() -> None:
    table = sinusoidal_table(50, 8)
    for i in (0, 1, 7, 49):
        for k in range(4):
            angle = i / 10000 ** (2 * k / 8)
            assert table[i, 2 * k].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[i, 2 * k + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)


def test_the_articles_positions_at_width_four() -> None:
    assert sinusoidal_table(2, 4)[1].tolist() == pytest.approx([0.841, 0.540, 0.010, 1.000], abs=1e-3)


def test_products_of_positions_depend_on_distance_only() -> None:
    table = sinusoidal_table(40, 16).double()
    products = table @ table.T
    for distance in range(5):
        assert torch.allclose(products.diagonal(distance), products[0, distance].expand(40 - distance), atol=1e-5)


def test_odd_width_has_a_last_sine() -> None:
    assert sinusoidal_table(3, 5).shape == (3, 5)
    assert sinusoidal_table(3, 5)[1, 4].item() == pytest.approx(math.sin(10000 ** (-4 / 5)))


@pytest.mark.parametrize("scale", [True, False])
def test_embedding_scales_and_adds_positions(scale: bool) -> None:
    tokens = nn.Embedding(7, 4)
    layer = Embedding(tokens, Sinusoidal(Seq2SeqConfig(d_model=4, n_heads=1, max_seq_len=9), True), scale, dropout=0.0)
    ids, positions = torch.tensor([[3, 5]]), torch.tensor([[6, 0]])
    expected = tokens.weight[[3, 5]] * (2.0 if scale else 1.0) + sinusoidal_table(9, 4)[[6, 0]]
    assert torch.allclose(layer(ids, positions)[0], expected)


def test_the_position_table_is_not_saved() -> None:
    assert not Sinusoidal(Seq2SeqConfig(d_model=4, n_heads=1, max_seq_len=9), True).state_dict()


def test_feed_forward_is_its_equation() -> None:
    torch.manual_seed(1)
    layer = FeedForward(components.FeedForwardConfig(), 3, 5, 0.0).double()
    x = torch.randn(2, 3, dtype=torch.float64)
    expected = torch.clamp(x @ layer.up.weight.T + layer.up.bias, min=0) @ layer.down.weight.T + layer.down.bias
    assert torch.allclose(layer(x), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("placement", ["post", "pre"])
def test_a_block_is_its_equations(placement: str) -> None:
    block, x = (
        build_block(Seq2SeqConfig(d_model=4, n_heads=2, d_ff=8, norm_placement=placement, dropout=0.0), cross=False),
        torch.randn(2, 3, 4),
    )
    norm, expected = LayerNorm(components.LayerNormConfig(), 4), x
    for f in (lambda y: block.attn(y)[0], block.ff):
        expected = norm(expected + f(expected)) if placement == "post" else expected + f(norm(expected))
    assert torch.allclose(block(x)[0], expected, atol=1e-6)


def test_masks() -> None:
    assert causal_mask(2, 4)[0, 0].tolist() == [[True, True, True, False], [True] * 4]
    segments = torch.tensor([[1, 1, 2, 0]])
    seen = same_segment_mask(segments, segments)[0, 0]
    assert seen.tolist() == [
        [True, True, False, False],
        [True, True, False, False],
        [False, False, True, False],
        [False, False, False, True],
    ]
    assert non_padding_mask(segments)[0, 0, 0].tolist() == [True, True, True, False]
