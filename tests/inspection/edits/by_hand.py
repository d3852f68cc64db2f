"""Forward passes written out in float64, with a change in one block, to compare edits with; rows have no padding."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tests.models.combinations import FAMILIES, VOCAB, described
from tests.models.test_combinations import built
from tests.models.test_vision import described as described_network
from transom.layers.observe import ActivationRecorder
from transom.models.base import Network

SIZES: dict[str, Any] = {"d_model": 12, "n_heads": 6, "d_ff": 8, "max_seq_len": 16}
GPT = SIZES | FAMILIES[3] | {"norm": "layernorm", "norm_placement": "pre", "position": "learned", "feed_forward": "relu"}
LLAMA = SIZES | FAMILIES[4] | {"norm": "rmsnorm", "norm_placement": "pre", "position": "rotary", "feed_forward": "swiglu", "n_kv_heads": 3}
BERT = SIZES | {
    "kind": "text-classifier",
    "n_layers": 2,
    "vocab_size": VOCAB,
    "classes": ["a", "b", "c"],
    "pooling": "cls",
    "norm": "layernorm",
    "norm_placement": "post",
    "position": "learned",
    "feed_forward": "relu",
}
TRANSLATOR = SIZES | FAMILIES[0] | {"norm": "layernorm", "norm_placement": "pre", "position": "sinusoidal", "feed_forward": "relu"}
VIT = SIZES | {
    "kind": "vision-transformer",
    "n_layers": 2,
    "image_size": 4,
    "patch_size": 2,
    "channels": 1,
    "classes": ["a", "b", "c"],
    "norm": "layernorm",
    "norm_placement": "pre",
    "position": "learned",
    "feed_forward": "relu",
    "pooling": "mean",
}
VIT = {name: value for name, value in VIT.items() if name != "max_seq_len"}
MODELS = {"gpt": GPT, "llama": LLAMA, "bert": BERT, "translator": TRANSLATOR, "vit": VIT}


def build(name: str, **fields: Any) -> tuple[Network, Any]:
    """Build a model in float64 and a batch of two rows without padding."""
    model = built((described_network if name == "vit" else described)(MODELS[name] | fields))
    source, target = torch.tensor([[3, 4, 5, 6, 2], [7, 2, 8, 3, 2]]), torch.tensor([[1, 5, 8, 4], [1, 7, 3, 6]])
    if name == "vit":
        return model, model.as_batch(torch.linspace(0, 1, 32, dtype=torch.float64).reshape(2, 1, 4, 4))
    return model, model.as_batch(source, decoder_tokens=target) if name == "translator" else model.as_batch(source)


def softmax_of_visible(products: Tensor, d_head: int, mask: Tensor) -> Tensor:
    """Compute softmax(Q K^T / sqrt(d_head)) over the visible keys."""
    return (products * d_head**-0.5).masked_fill(~mask, -torch.inf).softmax(-1)


def unchanged(x: Tensor) -> Tensor:
    return x


@dataclass
class Change:
    """What is computed differently in one block; attention means that of ``part``."""

    stack: str = ""
    block: int = 0
    part: str = "attn"
    weights: Callable[[Tensor, int, Tensor], Tensor] = softmax_of_visible
    z: Callable[[Tensor], Tensor] = unchanged
    hidden: Callable[[Tensor], Tensor] = unchanged
    resid_mid: Callable[[Tensor], Tensor] = unchanged
    without: set[str] = field(default_factory=set)


def linear(module: Any, x: Tensor) -> Tensor:
    return x @ module.weight.T + (0.0 if module.bias is None else module.bias)


def normalize(norm: Any, x: Tensor) -> Tensor:
    """Compute LayerNorm, or RMSNorm for a norm without a bias."""
    if not hasattr(norm, "bias"):
        return x / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight
    centered = x - x.mean(-1, keepdim=True)
    return centered / (centered.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight + norm.bias


def rotate(x: Tensor) -> Tensor:
    """Multiply the pairs (x_k, x_{k + d/2}), as complex numbers, by exp(i p theta_k) with theta_k = 10000^(-2k/d)."""
    half = x.shape[-1] // 2
    theta = 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * theta
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([turned.real, turned.imag], -1)


def attention(layer: Any, x: Tensor, memory: Tensor, mask: Tensor, change: Change, rotary: bool) -> Tensor:
    """Compute multi-head attention with grouped heads."""

    def heads(projection: Any, of: Tensor, width: int) -> Tensor:
        return linear(projection, of).unflatten(-1, (-1, width)).transpose(1, 2)

    q, k, v = heads(layer.q, x, layer.d_head), heads(layer.k, memory, layer.d_head), heads(layer.v, memory, layer.d_value)
    if rotary:
        q, k = rotate(q), rotate(k)
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    z = change.z(change.weights(q @ k.mT, layer.d_head, mask) @ v)
    return linear(layer.o, z.transpose(1, 2).flatten(2))


def feed_forward(layer: Any, x: Tensor, change: Change) -> Tensor:
    """Compute a ReLU or SwiGLU network."""
    up = linear(layer.up, x)
    gate = linear(layer.gate, x) if hasattr(layer, "gate") else None
    return linear(layer.down, change.hidden(up.relu() if gate is None else gate * gate.sigmoid() * up))


def stack(model: Any, name: str, x: Tensor, mask: Tensor, change: Change, memory: Tensor | None = None) -> Tensor:
    """Compute a stack from the embedded tokens."""
    post, rotary = model.config.norm_placement == "post", getattr(model.config.position, "kind", "") == "rotary"
    for i, block in enumerate(getattr(model, name).blocks):
        here = change if (name, i) == (change.stack, change.block) else Change()
        own, crossed = (here, Change()) if here.part == "attn" else (Change(), here)

        def sublayer(part: str, f: Callable[[Tensor], Tensor], x: Tensor, here: Change = here, block: Any = block) -> Tensor:
            norm = getattr(block, f"{part}_residual").norm
            y = f(x if post else normalize(norm, x)) + (0.0 if part in here.without else x)
            return normalize(norm, y) if post else y

        def cross(h: Tensor, block: Any = block, crossed: Change = crossed) -> Tensor:
            assert memory is not None
            return attention(block.cross, h, memory, torch.ones(h.shape[1], memory.shape[1], dtype=torch.bool), crossed, False)

        x = here.resid_mid(sublayer("attn", lambda h, b=block, c=own: attention(b.attn, h, h, mask, c, rotary), x))
        if block.cross is not None:
            x = sublayer("cross", cross, x)
        x = sublayer("ff", lambda h, b=block, c=here: feed_forward(b.ff, h, c), x)
    final = getattr(model, name).norm
    return x if final is None else normalize(final, x)


def by_hand(name: str, model: Any, batch: Any, change: Change) -> Tensor:
    """Compute the logits from the embedded tokens of the model."""
    recorder = ActivationRecorder(["*resid"])
    with torch.no_grad():
        model(batch, recorder)
        embedded = recorder.activations
        if name == "translator":
            source, target = embedded["source_embedding.resid"], embedded["target_embedding.resid"]
            memory = stack(model, "encoder", source, torch.ones(5, 5, dtype=torch.bool), change)
            return linear(model.unembedding, stack(model, "decoder", target, torch.ones(4, 4).tril().bool(), change, memory))
        x = embedded["embedding.resid"]
        full = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool)
        if name in ("gpt", "llama"):
            return linear(model.unembedding, stack(model, "decoder", x, full.tril(), change))
        states = stack(model, "encoder", x, full, change)
        pooled = states.mean(1) if name == "vit" else linear(model.pooler, states[:, 0]).tanh()
        return linear(model.unembedding, pooled)


STACKS = {"gpt": "decoder", "llama": "decoder", "bert": "encoder", "translator": "decoder", "vit": "encoder"}
"""Stack that is edited, per model."""
