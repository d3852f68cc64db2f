"""Phi-1, Phi-1.5 and Phi-2 (Gunasekar et al. 2023; Li et al. 2023)."""

from transom.exchange.config_rows import Always, Choice, Dropout, Expect, Same, Tied
from transom.exchange.family import Family
from transom.exchange.rope import RotaryRow
from transom.exchange.rows_shared import ACTIVATIONS, sizes
from transom.exchange.tensor_rows import TensorRow

OURS, BLOCK = "decoder.blocks.{i}", "model.layers.{i}"
FIELDS = (
    Always({"norm.kind": "layernorm", "norm_placement": "parallel", "head_bias": True}),
    *sizes(n_kv_heads=True),
    Same("norm.eps", "layer_norm_eps", 1e-5),
    Choice("feed_forward.kind", "hidden_act", ACTIVATIONS, "gelu_new"),
    RotaryRow(fraction=0.5, fraction_name="partial_rotary_factor"),
    Expect("qk_layernorm", False),
    Tied(False),
    Dropout("dropout", ("resid_pdrop", "embd_pdrop")),
    Dropout("attention_dropout", ("attention_dropout",)),
)
TENSORS = (
    TensorRow("embedding.tokens.weight", "model.embed_tokens.weight"),
    TensorRow(f"{OURS}.norm.{{weight,bias}}", f"{BLOCK}.input_layernorm.{{weight,bias}}"),
    TensorRow(f"{OURS}.attn.{{q,k,v,o}}.{{weight,bias}}", f"{BLOCK}.self_attn.{{q_proj,k_proj,v_proj,dense}}.{{weight,bias}}"),
    TensorRow(f"{OURS}.ff.{{up,down}}.{{weight,bias}}", f"{BLOCK}.mlp.{{fc1,fc2}}.{{weight,bias}}"),
    TensorRow("decoder.norm.{weight,bias}", "model.final_layernorm.{weight,bias}"),
    TensorRow("unembedding.{weight,bias}", "lm_head.{weight,bias}"),
)
FAMILIES = (
    Family(
        "phi",
        "PhiForCausalLM",
        "decoder",
        FIELDS,
        TENSORS,
        prefix="model.",
        auto_class="AutoModelForCausalLM",
        pipeline="text-generation",
    ),
)
