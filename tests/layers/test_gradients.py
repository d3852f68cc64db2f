"""Gradients of every layer with respect to inputs and weights, by finite differences in float64 with fixed dropout masks.

Every layer in float32 is also compared with itself in float64, the precision of the agreement tests.
"""

import pkgutil
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import transom.layers
from tests.tiers import tiers
from transom.config import components, moe
from transom.config.adapter import LoraConfig
from transom.config.depth import MixtureOfDepthsConfig
from transom.config.model import MaskedLMConfig, Seq2SeqConfig
from transom.config.recurrent import RecurrentSeq2SeqConfig
from transom.config.vision import CbamConfig, NoChannelAttentionConfig, SqueezeExcitationConfig, VisionTransformerConfig
from transom.layers.approximations.approximate_attention import build_attention
from transom.layers.approximations.approximation import Approximation
from transom.layers.approximations.linear_attention import LinearAttention, Performer
from transom.layers.attention import Attention
from transom.layers.block import Block, SequentialBlock, build_block
from transom.layers.context import AttentionContext, BlockContext, LayerContext, SegmentMask, StackContext
from transom.layers.dropout import Dropout
from transom.layers.embedding import Embedding
from transom.layers.feed_forward import build_feed_forward
from transom.layers.lora import LoraLinear
from transom.layers.masks.attention_contexts import build_contexts
from transom.layers.masks.mask_rules import CAUSAL_IN_SEGMENT, TokenPositions
from transom.layers.mixture_of_depths import DepthRouter
from transom.layers.norm import build_norm
from transom.layers.position_encoding import TabulatedPositionEncoding, build_position_encoding
from transom.layers.recurrent.recurrent_decoder import (
    AdditiveAttention,
    AttendingDecoder,
    DotAttention,
    PlainDecoder,
    SourceAttention,
    build_recurrent_decoder,
)
from transom.layers.recurrent.recurrent_layers import (
    RecurrentEncoder,
    RecurrentEncoderLayer,
    RecurrentLayer,
    RecurrentStack,
    reversal_indices,
)
from transom.layers.self_attention import SelfAttention
from transom.layers.stack import Stack
from transom.layers.vision.channel_attention import build_channel_attention
from transom.layers.vision.conv_stem import ConvStem
from transom.layers.vision.patch_embedding import PatchEmbedding

D_MODEL = 4
POSITIONS = torch.arange(3)[None]
CAUSAL = AttentionContext(mask=torch.ones(3, 3, dtype=torch.bool).tril()[None, None])
MEMORY = AttentionContext(mask=torch.tensor([[True, True], [True, False]])[:, None, None])  # the second source is one token shorter
BLOCK, STACK = BlockContext(attention=CAUSAL, cross=MEMORY), StackContext(attention_contexts=[CAUSAL], cross=MEMORY)


def config(placement: str = "post", **fields: Any) -> Seq2SeqConfig:
    """Configure small blocks with every kind of dropout."""
    dropouts = {"dropout": 0.2, "attention_dropout": 0.2, "feed_forward_dropout": 0.2}
    sizes = {"d_model": D_MODEL, "n_heads": 2, "d_ff": 5, "d_value": 3, "max_seq_len": 6, "norm_placement": placement}
    return Seq2SeqConfig.model_validate(sizes | dropouts | fields)


def embedding(position: str) -> Embedding:
    return Embedding(nn.Embedding(5, D_MODEL), build_position_encoding(config(position=position), True), scale=True, dropout=0.2)


def image(x: Tensor) -> Tensor:
    """Reshape an input to two images of one channel and 4 x 4 pixels."""
    return torch.cat([x.flatten(1), x.flatten(1)[:, :4].cos()], 1).reshape(2, 1, 4, 4)


def maps(x: Tensor) -> Tensor:
    """Reshape an input to two feature maps of four channels and 2 x 3 positions."""
    return torch.cat([x, x.sin()], 1).reshape(2, 4, 2, 3)


def vision(**fields: Any) -> VisionTransformerConfig:
    sizes = {"image_size": 4, "patch_size": 2, "channels": 1, "d_model": D_MODEL, "n_heads": 2, "dropout": 0.2}
    return VisionTransformerConfig.model_validate(sizes | fields)


def norm() -> nn.Module:
    return build_norm(components.LayerNormConfig(), D_MODEL)


def attention(attention: dict[str, Any] | None = None, **fields: Any) -> Attention:
    return Attention(config(**{"d_head": 3, "d_value": 2} | fields, attention=attention or {}))


class Placed(nn.Module):
    """Build attention with a position encoding."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        c = config(position=kind)
        self.position, self.attn = build_position_encoding(c, causal=kind == "alibi"), Attention(c)

    def forward(self, x: Tensor) -> Tensor:
        places = TokenPositions(POSITIONS, torch.ones_like(POSITIONS))
        return self.attn(x, build_contexts(self.position, places, places, [CAUSAL_IN_SEGMENT])[0])[0]


SEGMENTS = torch.tensor([[1, 1], [1, 0]])
PACKED = torch.tensor([[1, 1, 2], [1, 1, 0]])
REACHES = {"all of the text": SegmentMask(PACKED, PACKED, causal=False), "looking back": SegmentMask(PACKED, PACKED, causal=True)}
ACROSS = SegmentMask(torch.tensor([[1, 1, 1], [1, 1, 0]]), SEGMENTS, causal=False)


def approximate(kind: str) -> Attention:
    """Build approximate attention and sample its random features."""
    components = {
        "linformer": {"kind": kind, "rank": 2},
        "nystrom": {"kind": kind, "n_landmarks": 2},
        "performer": {"kind": kind, "n_features": 5},
    }
    sizes = {"d_model": D_MODEL, "n_heads": 2, "d_head": 3, "d_value": 2, "max_seq_len": 6}
    layer = build_attention(MaskedLMConfig.model_validate(sizes | {"attention": {"approximation": components.get(kind, kind)}}))
    for module in layer.modules():
        if isinstance(module, Performer):
            module.sample_projections()
    return layer


def recurrent(**fields: Any) -> RecurrentSeq2SeqConfig:
    """Configure a small recurrent network with dropout."""
    return RecurrentSeq2SeqConfig.model_validate(
        {"d_model": D_MODEL, "n_encoder_layers": 2, "n_decoder_layers": 2, "dropout": 0.2} | fields
    )


def decoded(layer: PlainDecoder, x: Tensor, memory: Tensor) -> Tensor:
    """Decode ``x`` from a padded source."""
    return layer(x, layer.initial_state([memory[:, 0], memory[:, 1]]), layer.project_source(memory, SEGMENTS))[0]


Call = Callable[[Any, Tensor, Tensor], Tensor]
CELLS = ("rnn", "lstm", "gru")
DECODERS: dict[str, Any] = {
    "no attention": "none",
    "additive attention": "additive",
    "input feeding": "luong",
    "dot": {"kind": "luong", "score": "dot", "input_feeding": False},
}
LAYERS: dict[str, tuple[Callable[[], nn.Module], Call]] = {
    "embedding": (
        lambda: embedding("sinusoidal"),
        lambda layer, x, memory: layer(torch.tensor([[4, 0, 4]]), torch.tensor([[0, 1, 5]])),
    ),
    "learned positions": (
        lambda: embedding("learned"),
        lambda layer, x, memory: layer(torch.tensor([[4, 0, 4]]), torch.tensor([[0, 5, 5]])),
    ),
    "no positions": (lambda: embedding("none"), lambda layer, x, memory: layer(torch.tensor([[4, 0, 4]]), POSITIONS)),
    "self-attention alone": (lambda: SelfAttention(D_MODEL, 2, 1, max_seq_len=8), lambda layer, x, memory: layer(x)),
    "layer norm": (norm, lambda layer, x, memory: layer(x)),
    "layer norm without a shift": (lambda: build_norm(components.LayerNormConfig(bias=False), D_MODEL), lambda layer, x, memory: layer(x)),
    "rms norm": (lambda: build_norm(components.RmsNormConfig(), D_MODEL), lambda layer, x, memory: layer(x)),
    "dynamic tanh": (lambda: build_norm(components.DynamicTanhConfig(), D_MODEL), lambda layer, x, memory: layer(x)),
    "batch norm": (
        lambda: build_norm(components.BatchNormConfig(), D_MODEL),
        lambda layer, x, memory: layer(x, LayerContext(token_mask=torch.tensor([[True, True, True], [True, False, False]]))),
    ),
    "no norm": (lambda: build_norm(components.NoNormConfig(), D_MODEL), lambda layer, x, memory: layer(x)),
    "dropout": (lambda: Dropout(0.4), lambda layer, x, memory: layer(x)),
    "dropout added": (lambda: Dropout(0.4), lambda layer, x, memory: layer.add(x, x * x)),
    **{
        kind: (
            lambda kind=kind: build_feed_forward(components.FeedForwardConfig(kind=kind), D_MODEL, 5, 0.2),
            lambda layer, x, memory: layer(x),
        )
        for kind in ("relu", "gelu", "gelu-tanh", "silu", "squared-relu")
    },
    **{
        kind: (
            lambda kind=kind: build_feed_forward(components.GatedFeedForwardConfig(kind=kind), D_MODEL, 5, 0.2),
            lambda layer, x, memory: layer(x),
        )
        for kind in ("glu", "reglu", "geglu", "swiglu")
    },
    "mixture": (
        lambda: build_feed_forward(
            moe.MoeConfig(n_experts=3, n_shared_experts=1, expert=components.FeedForwardConfig(kind="gelu")), D_MODEL, 5, 0.2
        ),
        lambda layer, x, memory: layer(x),
    ),
    "mixture with a capacity": (
        lambda: build_feed_forward(moe.MoeConfig(n_experts=3, capacity_factor=0.7, scoring_func="sigmoid"), D_MODEL, 5, 0.0),
        lambda layer, x, memory: layer(x),
    ),
    "self-attention": (attention, lambda layer, x, memory: layer(x, CAUSAL)[0]),
    "cross-attention": (attention, lambda layer, x, memory: layer(x, MEMORY, memory)[0]),
    "attention without biases": (
        lambda: attention({"qkv_bias": False, "output_bias": False}),
        lambda layer, x, memory: layer(x, memory=memory)[0],
    ),
    "attention without an output map": (
        lambda: attention({"output_projection": False}),
        lambda layer, x, memory: layer(x, memory=memory)[0],
    ),
    "grouped queries": (lambda: attention(n_kv_heads=1), lambda layer, x, memory: layer(x, CAUSAL)[0]),
    "normed queries and keys": (lambda: attention({"qk_norm": "rmsnorm"}), lambda layer, x, memory: layer(x, CAUSAL)[0]),
    "bounded scores": (lambda: attention({"softcap": 0.5}), lambda layer, x, memory: layer(x, CAUSAL)[0]),
    "sinks": (lambda: attention({"sinks": True}), lambda layer, x, memory: layer(x, CAUSAL)[0]),
    **{kind: (lambda kind=kind: Placed(kind), lambda layer, x, memory: layer(x)) for kind in ("rotary", "alibi", "relative")},
    **{
        f"{kind}, {name}": (
            lambda kind=kind: approximate(kind),
            lambda layer, x, memory, reach=reach: layer(x, AttentionContext(segment_mask=reach))[0],
        )
        for kind in ("linear", "performer", "linformer", "nystrom")
        for name, reach in REACHES.items()
        if kind in ("linear", "performer") or not reach.causal
    },
    **{
        f"{kind}, across": (
            lambda kind=kind: approximate(kind),
            lambda layer, x, memory: layer(x, AttentionContext(segment_mask=ACROSS), memory)[0],
        )
        for kind in ("linear", "performer", "linformer")
    },
    "squeeze and excitation": (
        lambda: build_channel_attention(SqueezeExcitationConfig(reduction=2), 4),
        lambda layer, x, memory: layer(maps(x)),
    ),
    "cbam": (lambda: build_channel_attention(CbamConfig(reduction=2, kernel_size=3), 4), lambda layer, x, memory: layer(maps(x))),
    "no channel attention": (lambda: build_channel_attention(NoChannelAttentionConfig(), 4), lambda layer, x, memory: layer(maps(x))),
    "stem": (
        lambda: ConvStem(vision(patch_size=1, stem={"kind": "convolutional", "channels": [3], "convs_per_stage": 2})),
        lambda layer, x, memory: layer(image(x)),
    ),
    "patches": (lambda: PatchEmbedding(vision()), lambda layer, x, memory: layer(image(x))),
    "patches on a grid": (
        lambda: PatchEmbedding(vision(pooling="mean", position="sinusoidal-2d", pixel_mean=[0.4], pixel_std=[0.2])),
        lambda layer, x, memory: layer(image(x)),
    ),
    "low rank": (
        lambda: LoraLinear(nn.Linear(D_MODEL, 3), LoraConfig(rank=2, alpha=3.0, dropout=0.3)),
        lambda layer, x, memory: layer(x),
    ),
    "encoder block": (lambda: build_block(config(), cross=False), lambda layer, x, memory: layer(x)[0]),
    **{
        f"{placement}-norm decoder block": (
            lambda placement=placement: build_block(config(placement), cross=True),
            lambda layer, x, memory: layer(x, BLOCK, memory)[0],
        )
        for placement in ("post", "pre", "sandwich", "parallel")
    },
    **{
        kind: (lambda kind=kind: RecurrentLayer(recurrent(cell=kind).cell, D_MODEL, 3), lambda layer, x, memory: layer(x)[0])
        for kind in CELLS
    },
    **{
        f"{kind}, step by step": (
            lambda kind=kind: RecurrentStack(recurrent(cell=kind).cell, [D_MODEL, 3], 3, 0.2),
            lambda layer, x, memory: layer.step(x[:, 1], layer.step(x[:, 0], [of.zero_state(x[:, 0]) for of in layer.layers]))[-1][0],
        )
        for kind in CELLS
    },
    "packed rows": (
        lambda: RecurrentStack(recurrent().cell, [D_MODEL, 3], 3, 0.2),
        lambda layer, x, memory: layer.forward_packed(x, torch.tensor([[1, 1, 2], [1, 2, 0]])),
    ),
    "both ways": (lambda: RecurrentEncoderLayer(recurrent(), D_MODEL), lambda layer, x, memory: layer(memory, reversal_indices(SEGMENTS))),
    "recurrent encoder": (
        lambda: RecurrentEncoder(recurrent()),
        lambda layer, x, memory: torch.cat(layer(memory, SEGMENTS)[1], -1),
    ),
    "general score": (
        lambda: DotAttention(D_MODEL, general=True),
        lambda layer, x, memory: layer(x, layer.project_source(memory, SEGMENTS)),
    ),
    "additive score": (lambda: AdditiveAttention(D_MODEL, 3), lambda layer, x, memory: layer(x, layer.project_source(memory, SEGMENTS))),
    **{
        f"decoder, {name}": (lambda attention=attention: build_recurrent_decoder(recurrent(attention=attention)), decoded)
        for name, attention in DECODERS.items()
    },
    "encoder": (lambda: Stack(config("pre"), 2, cross=False), lambda layer, x, memory: layer(x)),
    "chosen tokens": (
        lambda: DepthRouter(MixtureOfDepthsConfig(capacity=0.6), D_MODEL),
        lambda layer, x, memory: layer(x, lambda y, *_: (y + y.sin() * (1 + y.sum(1, keepdim=True)), None)),
    ),
    "mixture of depths": (
        lambda: Stack(config("pre", depth={"kind": "mod", "capacity": 0.6}), 2, cross=True),
        lambda layer, x, memory: layer(x, STACK, memory),
    ),
    "mixed values": (
        lambda: Stack(config("pre", attention={"value_residual": "learned"}), 3, cross=True),
        lambda layer, x, memory: layer(x, STACK, memory),
    ),
    "decoder": (lambda: Stack(config(), 2, cross=True), lambda layer, x, memory: layer(x, STACK, memory)),
}


def agrees_with_finite_differences(name: str, along_random_directions: bool) -> bool:
    """Compare a layer's Jacobian with finite differences: its product with random vectors, or each of its elements."""
    build, call = LAYERS[name]
    torch.manual_seed(2)
    layer = build().double().train()
    weights = {key: torch.randn_like(p, requires_grad=True) for key, p in layer.named_parameters()}
    x, memory = (torch.randn(2, length, D_MODEL, dtype=torch.float64, requires_grad=True) for length in (3, 2))

    class Whole(nn.Module):
        """The layer as one function of all that it depends on."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor, memory: Tensor) -> Tensor:
            torch.manual_seed(3)
            return call(self.layer, x, memory)

    def whole(x: Tensor, memory: Tensor, *values: Tensor) -> Tensor:
        return functional_call(Whole(), {f"layer.{key}": value for key, value in zip(weights, values, strict=True)}, (x, memory))

    return torch.autograd.gradcheck(whole, (x, memory, *weights.values()), fast_mode=along_random_directions)


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_by_finite_differences(name: str) -> None:
    """An error in any element changes the product with a random vector; each layer takes a tenth of the time of its elements."""
    assert agrees_with_finite_differences(name, along_random_directions=True)


@pytest.mark.parametrize("name", tiers(LAYERS, long=list(LAYERS)[::10]))
def test_every_element_of_the_gradients_by_finite_differences(name: str) -> None:
    assert agrees_with_finite_differences(name, along_random_directions=False)


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("name", LAYERS)
@torch.no_grad()
def test_float32_is_near_float64_in_all_elements(name: str, training: bool) -> None:
    """Tables are computed in each dtype too."""
    build, call = LAYERS[name]
    results: list[Tensor] = []
    torch.manual_seed(2)
    layer = build()
    for parameter in layer.parameters():
        parameter.normal_(0.0, 0.7)
    inputs = [torch.randn(2, length, D_MODEL) for length in (3, 2)]
    for dtype in (torch.float32, torch.float64):
        torch.set_default_dtype(dtype)
        try:
            same = build().train(training)
        finally:
            torch.set_default_dtype(torch.float32)
        same.load_state_dict(layer.state_dict())
        torch.manual_seed(3)
        results.append(call(same, *(x.to(dtype) for x in inputs)))
    found, exact = results
    assert (found.dtype, exact.dtype) == (torch.float32, torch.float64)
    assert (found - exact).abs().max() <= 1e-5 * exact.abs().max().clamp(min=1.0)


COMMON = {TabulatedPositionEncoding, Block, SequentialBlock, SourceAttention, AttendingDecoder, Approximation, LinearAttention}
"""Base classes, which other layers test."""


def test_no_layer_is_forgotten() -> None:
    files = [import_module(f"transom.layers.{file.name}") for file in pkgutil.iter_modules(transom.layers.__path__)]
    classes = {thing for file in files for thing in vars(file).values() if isinstance(thing, type) and issubclass(thing, nn.Module)}
    ours = {each for each in classes if each.__module__.startswith("transom")} - COMMON
    assert ours and ours <= {type(module) for build, _ in LAYERS.values() for module in build().modules()}
