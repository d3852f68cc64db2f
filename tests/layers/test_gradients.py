"""Every layer's gradient, to its inputs and to its weights, by finite differences in float64; dropout with its draws held."""

import pkgutil
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import transom.layers
from transom.config.model import LayerNorm as LayerNormBrick
from transom.config.model import MultiHead, Relu, Seq2Seq
from transom.config.model import Sinusoidal as SinusoidalBrick
from transom.layers.attention import Attention
from transom.layers.block import Block
from transom.layers.dropout import Dropout
from transom.layers.embedding import Embedding
from transom.layers.feed_forward import FeedForward
from transom.layers.norm import LayerNorm
from transom.layers.position import Sinusoidal
from transom.layers.residual import PostNorm, PreNorm, Residual
from transom.layers.stack import Stack

D_MODEL = 4
CAUSAL = torch.ones(3, 3, dtype=torch.bool).tril()[None, None]
MEMORY_MASK = torch.tensor([[True, True], [True, False]])[:, None, None]  # the second source is one token shorter


def config(placement: Any) -> Seq2Seq:
    """Describe small blocks with every dropout on."""
    dropouts = {"dropout": 0.2, "attention_dropout": 0.2, "feed_forward_dropout": 0.2}
    return Seq2Seq(d_model=D_MODEL, n_heads=2, d_ff=5, d_value=3, norm_placement=placement, **dropouts)  # type: ignore[arg-type]


def embedding() -> Embedding:
    return Embedding(nn.Embedding(5, D_MODEL), Sinusoidal(SinusoidalBrick(), 6, D_MODEL), scale=True, dropout=0.2)


def norm() -> LayerNorm:
    return LayerNorm(LayerNormBrick(), D_MODEL)


def attention(**brick: bool) -> Attention:
    return Attention(MultiHead(**brick), D_MODEL, n_heads=2, d_head=3, d_value=2, dropout=0.2)


Call = Callable[[Any, Tensor, Tensor], Tensor]
LAYERS: dict[str, tuple[Callable[[], nn.Module], Call]] = {
    "embedding": (embedding, lambda layer, x, memory: layer(torch.tensor([[4, 0, 4]]), torch.tensor([[0, 1, 5]]))),
    "norm": (norm, lambda layer, x, memory: layer(x)),
    "dropout": (lambda: Dropout(0.4), lambda layer, x, memory: layer(x)),
    "dropout added": (lambda: Dropout(0.4), lambda layer, x, memory: layer.add(x, x * x)),
    "feed-forward": (lambda: FeedForward(Relu(), D_MODEL, 5, 0.2), lambda layer, x, memory: layer(x)),
    "self-attention": (attention, lambda layer, x, memory: layer(x, None, CAUSAL)),
    "cross-attention": (attention, lambda layer, x, memory: layer(x, memory, MEMORY_MASK)),
    "attention without biases": (lambda: attention(bias=False, output_bias=False), lambda layer, x, memory: layer(x, memory)),
    "attention without an output map": (lambda: attention(output=False), lambda layer, x, memory: layer(x, memory)),
    "post-norm": (lambda: PostNorm(norm(), 0.2), lambda layer, x, memory: layer(x, torch.sin)),
    "pre-norm": (lambda: PreNorm(norm(), 0.2), lambda layer, x, memory: layer(x, torch.sin)),
    "encoder block": (lambda: Block(config("post"), cross=False), lambda layer, x, memory: layer(x)),
    "decoder block": (lambda: Block(config("post"), cross=True), lambda layer, x, memory: layer(x, CAUSAL, memory, MEMORY_MASK)),
    "pre-norm block": (lambda: Block(config("pre"), cross=True), lambda layer, x, memory: layer(x, CAUSAL, memory, MEMORY_MASK)),
    "encoder": (lambda: Stack(config("pre"), 2, cross=False), lambda layer, x, memory: layer(x)),
    "decoder": (lambda: Stack(config("post"), 2, cross=True), lambda layer, x, memory: layer(x, CAUSAL, memory, MEMORY_MASK)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_by_finite_differences(name: str) -> None:
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

    many = sum(weight.numel() for weight in weights.values()) > 300  # then along random directions, not element by element
    assert torch.autograd.gradcheck(whole, (x, memory, *weights.values()), fast_mode=many)


def test_no_layer_is_forgotten() -> None:
    files = [import_module(f"transom.layers.{file.name}") for file in pkgutil.iter_modules(transom.layers.__path__)]
    classes = {thing for file in files for thing in vars(file).values() if isinstance(thing, type) and issubclass(thing, nn.Module)}
    ours = {each for each in classes if each.__module__.startswith("transom")} - {Residual}  # what the two wirings have in common
    assert ours and ours <= {type(module) for build, _ in LAYERS.values() for module in build().modules()}
