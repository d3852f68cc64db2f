"""Parameter counts, costs and patches of the articles, by the counts of ``planning`` for models of the published shapes."""

import math
from collections.abc import Mapping
from typing import cast

import torch

from transom.config.architecture import TransformerConfig
from transom.config.components import FeedForwardConfig, LayerNormConfig, LearnedPositionConfig
from transom.config.model import DecoderConfig
from transom.config.presets import load_preset
from transom.config.recipe import parse_model_config
from transom.config.vision import VisionTransformerConfig
from transom.lab.examples import Example
from transom.lab.recompute_small import constant
from transom.lab.steps import Step
from transom.planning.flops import count_flops
from transom.planning.parameters import count_parameters, count_weights
from transom.planning.presets import compare_preset

MILLION, BILLION = 1e6, 1e9


def count_steps(examples: Mapping[str, Example]) -> dict[str, Step]:
    """Return the steps of parameter counts, costs, patches, and the table of language models."""
    return {**parameter_steps(), **gpt3_steps(), **cost_steps(), **patch_steps(), **language_model_steps()}


def gpt_like(d_model: int, n_layers: int, n_heads: int, vocab_size: int, max_seq_len: int) -> DecoderConfig:
    """Return a decoder with GPT-2's components: biases, LayerNorm, learned positions, d_ff = 4 d_model, tied embeddings."""
    return DecoderConfig(
        d_model=d_model,
        n_layers=n_layers,
        n_heads=n_heads,
        d_ff=4 * d_model,
        vocab_size=vocab_size,
        max_seq_len=max_seq_len,
        norm=LayerNormConfig(),
        position=LearnedPositionConfig(),
        feed_forward=FeedForwardConfig(kind="gelu"),
    )


PRESETS = {
    "gpt": "gpt",
    "gpt3": "gpt3-175b",
    "jurassic": "jurassic-1-178b",
    "megatron": "megatron-turing-530b",
    "palm": "palm-540b",
    "lamda": "lamda-137b",
    "llama": "llama-65b",
}
"""Presets of the models whose printed parameters are recomputed."""

SHAPES = {name: load_preset(preset).config() for name, preset in PRESETS.items()}
"""Configurations of these models, with the published sizes."""

GPT3 = cast(DecoderConfig, SHAPES["gpt3"])

IN_TRILLIONS = ("chinchilla", "llama", "llama2")
"""Models whose tokens the article prints in trillions first."""


def language_model_steps() -> dict[str, Step]:
    """Return the parameters of language models, in billions (of GPT in millions), and tokens per parameter."""
    steps = {}
    for name, preset in PRESETS.items():
        n = compare_preset(load_preset(preset)).comparable  # for LaMDA without embeddings, as in its table
        steps[f"002-{name}-parameters"] = constant(n / (MILLION if name == "gpt" else BILLION))
    for name in (*SHAPES, "gpt2", "gopher", "chinchilla", "llama2"):
        million = name == "gpt"
        inputs = (f"002-{name}-billions", f"002-{name}-parameters")
        unit = 1000 if name in IN_TRILLIONS else 1
        steps[f"002-{name}-billions"] = Step((f"002-{name}-tokens",), lambda tokens, unit=unit: unit * tokens)
        steps[f"002-{name}-ratio"] = Step(inputs, lambda tokens, n, million=million: tokens / (n / 1000 if million else n))
    return steps


def polynomial(part: str, d_ff: int = 4) -> tuple[float, float]:
    """Return a and b of the a d^2 + b d parameters that a part of one post-norm encoder block has, from the counts at two widths."""

    def count(d: int) -> int:
        config = {"kind": "encoder", "d_model": d, "n_heads": 1, "d_ff": d_ff * d, "n_layers": 1, "vocab_size": 2, "norm_placement": "post"}
        return count_parameters(parse_model_config({**config, "embedding_norm": False})).parts[part]

    small, large = count(64), count(128)
    a = (large - 2 * small) / (128**2 - 2 * 64**2)
    return a, (small - a * 64**2) / 64


def parameter_steps() -> dict[str, Step]:
    """Return the coefficients of d^2 and d in the parameter counts of one block."""
    d = 64
    config = gpt_like(d, 1, 1, 2, 2)
    (_, norms), (squares, biases) = polynomial("encoder.norm"), polynomial("encoder.ff")
    return {
        "004-attention-coefficient": constant(count_weights(config, "decoder.blocks.attn.") / d**2),
        "004-projections": constant(
            [count_weights(config, *names) / d**2 for names in (("decoder.blocks.attn.q", *_KEYS_VALUES), ("decoder.blocks.attn.o",))]
        ),
        "004-ffn-coefficient": constant(count_weights(config, "decoder.blocks.ff.") / d**2),
        "004-norms-coefficient": constant(norms),
        "004-norm-coefficient": constant(norms / 2),
        "004-ffn-biases": constant([squares, biases]),
    }


_KEYS_VALUES = ("decoder.blocks.attn.k", "decoder.blocks.attn.v")


def gpt3_steps() -> dict[str, Step]:
    """Return parameter counts of GPT-3, and of embeddings with the rounded vocabulary that article 003 prints."""
    rounded = count_parameters(GPT3.model_copy(update={"vocab_size": 50000, "tie_embeddings": False, "position": GPT3.position}))
    positions = GPT3.max_seq_len * GPT3.d_model
    return {
        "003-embedding-count": constant((rounded.parts["embedding"] - positions) / MILLION),
        "003-unembedding-count": constant(rounded.parts["unembedding"] / MILLION),
        "003-expansion": constant(GPT3.d_ff / GPT3.d_model),
        "004-gpt3-ffn": constant(count_weights(GPT3, "decoder.blocks.ff.") / BILLION),
        "004-gpt3-total": constant(count_parameters(GPT3).total / BILLION),
    }


def cost_steps() -> dict[str, Step]:
    """Return how costs grow with the number of tokens and of heads, from counts of FLOPs."""

    def config(n_heads: int) -> TransformerConfig:
        return gpt_like(512, 1, n_heads, 2, 4096)

    def flops(part: str, length: int, n_heads: int = 8) -> int:
        return count_flops(config(n_heads), 1, 0, length).parts[part]

    def pairs(length: int, n_heads: int = 8) -> float:
        """Count the FLOPs of attention without its projections."""
        return flops("decoder.attn", length, n_heads) - 2 * length * count_weights(config(n_heads), "decoder.blocks.attn.")

    return {
        "000-heads-cost": constant(pairs(512, 8) / pairs(512, 1)),
        "004-heads-cost": constant(pairs(512, 8) / pairs(512, 1)),
        "004-attention-power": constant(math.log2(pairs(1024) / pairs(512))),
        "004-ffn-power": constant(math.log2((flops("decoder.ff", 1024) / 1024) / (flops("decoder.ff", 512) / 512))),
        "004-table-attention-power": constant(math.log2(pairs(1024) / pairs(512))),
        "004-table-ffn-power": constant(math.log2(flops("decoder.ff", 1024) / flops("decoder.ff", 512))),
    }


def patch_steps() -> dict[str, Step]:
    """Return the patches of the Vision Transformer of article 002's listing, and the width of its heads."""
    config = parse_model_config({"preset": "vit-small-example", "classes": tuple("0123456789")})
    assert isinstance(config, VisionTransformerConfig)
    sizes = (config.image_size, config.image_size, config.channels, config.n_logits, config.patch_size)
    model = (config.d_model, config.n_heads, config.n_layers, config.d_ff)
    return {
        "002-vit-sizes": constant(torch.tensor([*sizes, *model], dtype=torch.float64)),
    }
