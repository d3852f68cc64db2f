"""Gemma 2 (Gemma Team 2024)."""

import math

from transom.exchange.config_rows import Always, Choice, Computed, Dropout, Ignored, Same, Tied
from transom.exchange.families.llama import layer_types
from transom.exchange.family import Family
from transom.exchange.rope import RotaryRow
from transom.exchange.rows_shared import GATED_TANH, HeadSize, sizes
from transom.exchange.tensor_rows import GAIN_MINUS_ONE, Configs, ScaledQuery, TensorRow


def _query_factor(configs: Configs) -> float:
    """Return sqrt(d_head / query_pre_attn_scalar): Gemma divides scores by the root of this field."""
    return math.sqrt(configs.ours.d_head / configs.foreign.get("query_pre_attn_scalar", 256))


OURS, BLOCK = "decoder.blocks.{i}", "model.layers.{i}"
FIELDS = (
    Always({"norm.kind": "rmsnorm", "norm_placement": "sandwich", "scale_embeddings": True, "dropout": 0.0}),
    *sizes(n_kv_heads=True),
    HeadSize(256),
    Computed(("query_pre_attn_scalar",), lambda foreign: {}, lambda ours: {"query_pre_attn_scalar": ours["d_head"]}),
    Same("norm.eps", "rms_norm_eps", 1e-6),
    Choice("feed_forward.kind", "hidden_activation", GATED_TANH, "gelu_pytorch_tanh"),
    Same("attention.softcap", "attn_logit_softcapping", 50.0),
    Same("logit_softcap", "final_logit_softcapping", 30.0),
    Computed(
        ("attention_bias",),
        lambda foreign: dict.fromkeys(("attention.qkv_bias", "attention.output_bias"), foreign.get("attention_bias", False)),
        lambda ours: {"attention_bias": ours["attention.qkv_bias"]},
    ),
    RotaryRow(),
    layer_types(always=True),
    Tied(True),
    Dropout("attention_dropout", ("attention_dropout",)),
    Ignored(("hidden_act",)),
)
TENSORS = (
    TensorRow("embedding.tokens.weight", "model.embed_tokens.weight"),
    TensorRow(f"{OURS}.attn.q.weight", f"{BLOCK}.self_attn.q_proj.weight", ScaledQuery(_query_factor)),
    TensorRow(f"{OURS}.attn.q.bias", f"{BLOCK}.self_attn.q_proj.bias", ScaledQuery(_query_factor)),
    TensorRow(f"{OURS}.attn.{{k,v,o}}.{{weight,bias}}", f"{BLOCK}.self_attn.{{k,v,o}}_proj.{{weight,bias}}"),
    TensorRow(f"{OURS}.ff.{{gate,up,down}}.weight", f"{BLOCK}.mlp.{{gate,up,down}}_proj.weight"),
    TensorRow(f"{OURS}.attn_residual.{{norm,norm_out}}.weight", f"{BLOCK}.{{input,post_attention}}_layernorm.weight", GAIN_MINUS_ONE),
    TensorRow(f"{OURS}.ff_residual.{{norm,norm_out}}.weight", f"{BLOCK}.{{pre,post}}_feedforward_layernorm.weight", GAIN_MINUS_ONE),
    TensorRow("decoder.norm.weight", "model.norm.weight", GAIN_MINUS_ONE),
    TensorRow("unembedding.weight", "lm_head.weight"),
)
FAMILIES = (
    Family(
        "gemma2",
        "Gemma2ForCausalLM",
        "decoder",
        FIELDS,
        TENSORS,
        prefix="model.",
        auto_class="AutoModelForCausalLM",
        pipeline="text-generation",
    ),
)
