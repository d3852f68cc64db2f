"""Other libraries' decoders of a family's shape: x-transformers, and litgpt where it is installed.

litgpt requires older libraries than the others and is not among transom's extras, but its models work beside them:
``pip install --no-deps litgpt lightning lightning-utilities torchmetrics jsonargparse typeshed-client docstring-parser``.
"""

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.families import Family, build_batch
from benchmarks.peers.training import build_training_steps

Workloads = dict[tuple[str, str], Callable[[], Any]]


def installed() -> list[str]:
    """Return the libraries of this file that are installed."""
    return [name for name in BUILDERS if importlib.util.find_spec(name.replace("-", "_"))]


def workloads(library: str, family: Family, compiled: bool) -> Workloads:
    """Return the training steps of a library's model by mode; tokens are those of transom's model."""
    torch.manual_seed(1)
    model, batch = BUILDERS[library](family.config), build_batch(family)
    tokens = batch.decoder_input.tokens  # type: ignore[union-attr]
    steps = build_training_steps(model.train(), lambda: model(tokens), batch.labels, compiled, family.training)
    return {("training", mode): step for mode, step in steps.items()}


def build_x_transformers(c: Any) -> nn.Module:
    """Build an x-transformers decoder with its fastest attention."""
    from x_transformers import Decoder, TransformerWrapper

    attention = {"dim": c.d_model, "depth": c.n_layers, "heads": c.n_heads, "attn_dim_head": c.d_model // c.n_heads, "attn_flash": True}
    layers = Decoder(ff_mult=c.d_ff // c.d_model, **attention)
    return TransformerWrapper(num_tokens=c.vocab_size, max_seq_len=c.max_seq_len, attn_layers=layers)  # type: ignore[no-any-return]


def build_litgpt(c: Any) -> nn.Module:
    """Build a litgpt model with its default components: rotary positions and parallel blocks."""
    from litgpt.config import Config
    from litgpt.model import GPT

    sizes = {"n_layer": c.n_layers, "n_head": c.n_heads, "n_embd": c.d_model, "intermediate_size": c.d_ff, "block_size": c.max_seq_len}
    return GPT(Config(vocab_size=c.vocab_size, padded_vocab_size=c.vocab_size, **sizes))  # type: ignore[no-any-return]


BUILDERS: dict[str, Callable[[Any], nn.Module]] = {"x-transformers": build_x_transformers, "litgpt": build_litgpt}
