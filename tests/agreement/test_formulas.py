"""Components that other libraries compute in float32, against explicit formulas: exactly in float64, nearly in float32."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from transom.config.model import DecoderConfig
from transom.layers.attention import Attention, AttentionArgs, explicit_attention, scaled_dot_product_attention
from transom.layers.masks.attention_contexts import build_contexts
from transom.layers.masks.mask_rules import CAUSAL_IN_SEGMENT, TokenPositions
from transom.layers.position_encoding import Rotary, build_position_encoding, sinusoidal_table

SEEN = torch.ones(5, 5, dtype=torch.bool).tril()


@pytest.fixture(params=[(torch.float64, 1e-10), (torch.float32, 1e-5)], ids=["float64", "float32"])
def close(request: pytest.FixtureRequest) -> Iterator[float]:
    """Set the default dtype; return the tolerance of all elements relative to the largest."""
    dtype, tolerance = request.param
    torch.set_default_dtype(dtype)
    torch.manual_seed(1)
    yield tolerance
    torch.set_default_dtype(torch.float32)


def near(found: Tensor, formula: Tensor, tolerance: float) -> bool:
    assert found.dtype == torch.get_default_dtype() and formula.dtype == torch.float64 and found.shape == formula.shape
    return bool((found.double() - formula).abs().max() <= tolerance * formula.abs().max().clamp(min=1.0))


def config(**fields: Any) -> DecoderConfig:
    return DecoderConfig.model_validate({"d_model": 32, "n_heads": 4, "max_seq_len": 64, "vocab_size": 5} | fields)


def test_sinusoids(close: float) -> None:
    """Vaswani et al. 2017, section 3.5."""
    table = [[math.sin(i / 10000 ** (2 * (k // 2) / 10) + k % 2 * math.pi / 2) for k in range(10)] for i in range(500)]
    assert near(sinusoidal_table(500, 10), torch.tensor(table, dtype=torch.float64), close)


def slope(h: int, n_heads: int) -> float:
    """Return the slope of head h, from 1: the paper's for powers of two; for further heads, every other slope of twice as many heads."""
    whole = 1 << (n_heads.bit_length() - 1)
    return 2 ** (-8 * h / whole) if h <= whole else 2 ** (-4 * (2 * (h - whole) - 1) / whole)


@pytest.mark.parametrize("n_heads", [1, 4, 6, 8, 12])
def test_alibi(n_heads: int, close: float) -> None:
    """Press et al. 2022, section 3."""
    position = build_position_encoding(config(n_heads=n_heads, d_head=8, position="alibi"), causal=True)
    bias = position.bias(torch.tensor([[7, 30]]), torch.arange(40)[None])
    assert bias is not None
    expected = [[[-slope(h, n_heads) * abs(i - j) for j in range(40)] for i in (7, 30)] for h in range(1, n_heads + 1)]
    assert near(bias[0], torch.tensor(expected, dtype=torch.float64), close)


def yarn(k: int, d: int, base: float, factor: float, trained: int) -> float:
    """Peng et al. 2023, section 3.2, with the ramp over pairs of the authors' code."""

    def pair(turns: float) -> float:
        return d * math.log(trained / (2 * math.pi * turns)) / (2 * math.log(base))

    low, high = max(math.floor(pair(32)), 0), min(math.ceil(pair(1)), d - 1)
    squeezed = min(1.0, max(0.0, (k - low) / (high - low)))
    return base ** (-2 * k / d) * (1 - squeezed + squeezed / factor)


THETA: dict[str, Any] = {
    "none": lambda k, d, base, f: base ** (-2 * k / d),
    "linear": lambda k, d, base, f: base ** (-2 * k / d) / f,
    "ntk": lambda k, d, base, f: (base * f ** (d / (d - 2))) ** (-2 * k / d),
    "yarn": lambda k, d, base, f: yarn(k, d, base, f, 16),
}
"""Frequency of pair k of d dimensions, per scaling (Su et al. 2021; Chen et al. 2023; for ntk see ``frequencies``)."""


@pytest.mark.parametrize("scaling", THETA)
@pytest.mark.parametrize("base", [100.0, 10000.0])
def test_rotary_scalings(scaling: str, base: float, close: float) -> None:
    factor = 1.0 if scaling == "none" else 4.0
    rotary = {"kind": "rotary", "rope_theta": base, "rope_scaling": scaling, "factor": factor}
    position = build_position_encoding(config(d_model=64, position=rotary), causal=True)
    assert isinstance(position, Rotary)
    scale = 0.1 * math.log(factor) + 1 if scaling == "yarn" else 1.0
    angles = torch.tensor([[i * THETA[scaling](k, 16, base, factor) for k in range(8)] for i in range(64)], dtype=torch.float64)
    assert near(position.cos[0], angles.cos() * scale, close) and near(position.sin[0], angles.sin() * scale, close)


NORMED: dict[str, Any] = {
    "none": lambda x, norm: x,
    "rmsnorm": lambda x, norm: norm.weight * x / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt(),
    "layernorm": lambda x, norm: (
        norm.weight * (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + norm.eps).sqrt() + norm.bias
    ),
    "dyt": lambda x, norm: norm.weight * torch.tanh(norm.alpha * x) + norm.bias,
}


@pytest.mark.parametrize("kind", NORMED)
@torch.no_grad()
def test_queries_and_keys_are_normed_a_head_and_then_turned(kind: str, close: float) -> None:
    """Dehghani et al. 2023, section 2, with RoPE as a product of complex numbers, head by head."""
    c = config(n_kv_heads=2, attention={"qk_norm": kind}, position="rotary")
    layer, position, places = (
        Attention(c),
        build_position_encoding(c, causal=True),
        TokenPositions(torch.arange(5)[None], torch.ones(1, 5, dtype=torch.long)),
    )
    for parameter in layer.parameters():
        parameter.normal_(0.3, 0.5)
    x = torch.randn(1, 5, 32)
    found = layer(x, build_contexts(position, places, places, [CAUSAL_IN_SEGMENT])[0])[0]
    exact = layer.double()
    turned = torch.exp(1j * torch.arange(5)[:, None] * 10000.0 ** (-torch.arange(0, 8, 2, dtype=torch.float64) / 8))

    def vectors(name: str, head: int) -> Tensor:
        part = getattr(exact, name)
        y = x[0].double() @ part.weight[8 * head : 8 * head + 8].T + part.bias[8 * head : 8 * head + 8]
        if name == "v":
            return y
        y = NORMED[kind](y, getattr(exact, f"{name}_norm"))
        pairs = torch.complex(y[:, :4], y[:, 4:]) * turned
        return torch.cat([pairs.real, pairs.imag], -1)

    heads = []
    for head in range(4):
        s = vectors("q", head) @ vectors("k", head // 2).T / math.sqrt(8)
        heads.append(s.masked_fill(~SEEN, -math.inf).softmax(-1) @ vectors("v", head // 2))
    assert near(found[0], torch.cat(heads, -1) @ exact.o.weight.T + exact.o.bias, close)


@pytest.mark.parametrize("softcap", [None, 0.7])
@pytest.mark.parametrize("sunk", [False, True])
def test_scores_are_bounded_and_sunk(softcap: float | None, sunk: bool, close: float) -> None:
    """Softcap (Gemma Team 2024, section 2): c tanh(S / c); sinks (Agarwal et al. 2025): an extra term of the softmax. Pair by pair."""
    q, k, v, sinks = torch.randn(1, 2, 5, 4), torch.randn(1, 1, 5, 4), torch.randn(1, 1, 5, 3), torch.randn(2)
    expected = torch.zeros(1, 2, 5, 3, dtype=torch.float64)
    for h in range(2):
        for i in range(5):
            s = [math.fsum(q[0, h, i].double() * k[0, 0, j].double()) / 2 for j in range(i + 1)]
            weights = [math.exp(softcap * math.tanh(each / softcap) if softcap else each) for each in s]
            whole = sum(weights) + (math.exp(sinks[h].item()) if sunk else 0.0)
            expected[0, h, i] = sum(w / whole * v[0, 0, j].double() for j, w in enumerate(weights))
    terms = AttentionArgs(SEEN[None, None], softcap=softcap, sinks=sinks if sunk else None)
    for path in (scaled_dot_product_attention, explicit_attention):
        assert near(path(q, k, v, terms), expected, close)
