"""GPT-2 (Radford et al. 2019)."""

from collections.abc import Mapping
from typing import Any

from transom.exchange.config_rows import Always, Choice, Computed, Dropout, Expect, Fields, Same, Tied, foreign_size
from transom.exchange.family import Family
from transom.exchange.rows_shared import ACTIVATIONS
from transom.exchange.tensor_rows import TRANSPOSED, TensorRow


def _read_width(foreign: Mapping[str, Any]) -> Fields:
    return {"d_ff": foreign.get("n_inner") or 4 * foreign_size(foreign, "n_embd", 768)}


FIELDS = (
    Always({"norm.kind": "layernorm", "norm_placement": "pre", "position.kind": "learned"}),
    Same("d_model", "n_embd", 768),
    Same("n_layers", "n_layer", 12),
    Same("n_heads", "n_head", 12),
    Computed(("n_inner",), _read_width, lambda ours: {"n_inner": ours["d_ff"]}),
    Same("max_seq_len", "n_positions", 1024),
    Same("vocab_size", "vocab_size", 50257),
    Same("norm.eps", "layer_norm_epsilon", 1e-5),
    Choice("feed_forward.kind", "activation_function", ACTIVATIONS, "gelu_new"),
    Tied(True),
    Dropout("dropout", ("resid_pdrop", "embd_pdrop"), 0.1),
    Dropout("attention_dropout", ("attn_pdrop",), 0.1),
    Expect("scale_attn_weights", True),
    Expect("scale_attn_by_inverse_layer_idx", False),
    Expect("reorder_and_upcast_attn", False),
)
BLOCK, OURS = "transformer.h.{i}", "decoder.blocks.{i}"
TENSORS = (
    TensorRow("embedding.tokens.weight", "transformer.wte.weight"),
    TensorRow("embedding.position.table.weight", "transformer.wpe.weight"),
    TensorRow(f"{OURS}.{{attn,ff}}_residual.norm.{{weight,bias}}", f"{BLOCK}.{{ln_1,ln_2}}.{{weight,bias}}"),
    TensorRow(f"{OURS}.attn.[q,k,v].{{weight,bias}}", f"{BLOCK}.attn.c_attn.{{weight,bias}}", TRANSPOSED),
    TensorRow(
        f"{OURS}.{{attn.o,ff.up,ff.down}}.{{weight,bias}}", f"{BLOCK}.{{attn.c_proj,mlp.c_fc,mlp.c_proj}}.{{weight,bias}}", TRANSPOSED
    ),
    TensorRow("decoder.norm.{weight,bias}", "transformer.ln_f.{weight,bias}"),
    TensorRow("unembedding.weight", "lm_head.weight"),
)
FAMILIES = (
    Family(
        "gpt2",
        "GPT2LMHeadModel",
        "decoder",
        FIELDS,
        TENSORS,
        prefix="transformer.",
        auto_class="AutoModelForCausalLM",
        pipeline="text-generation",
        derived=(r"transformer\.h\.\d+\.attn\.(masked_)?bias",),
    ),
)
