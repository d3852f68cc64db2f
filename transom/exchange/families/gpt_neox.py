"""GPT-NeoX (Black et al. 2022) and Pythia."""

from transom.exchange.config_rows import Always, Choice, Computed, Dropout, Same, Tied
from transom.exchange.family import Family
from transom.exchange.rope import RotaryRow
from transom.exchange.rows_shared import ACTIVATIONS, sizes
from transom.exchange.tensor_rows import BY_HEAD, TensorRow

OURS, BLOCK = "decoder.blocks.{i}", "gpt_neox.layers.{i}"
FIELDS = (
    Always({"norm.kind": "layernorm"}),
    *sizes(n_kv_heads=False),
    Choice("norm_placement", "use_parallel_residual", {True: "parallel-separate", False: "pre"}, True),
    Same("norm.eps", "layer_norm_eps", 1e-5),
    Choice("feed_forward.kind", "hidden_act", ACTIVATIONS, "gelu"),
    RotaryRow(fraction=0.25, theta_name="rotary_emb_base", fraction_name="rotary_pct"),
    Computed(
        ("attention_bias",),
        lambda foreign: dict.fromkeys(("attention.qkv_bias", "attention.output_bias"), foreign.get("attention_bias", True)),
        lambda ours: {"attention_bias": ours["attention.qkv_bias"]},
    ),
    Tied(False),
    Dropout("dropout", ("hidden_dropout",)),
    Dropout("attention_dropout", ("attention_dropout",)),
)
TENSORS = (
    TensorRow("embedding.tokens.weight", "gpt_neox.embed_in.weight"),
    TensorRow(f"{OURS}.attn.[q,k,v].{{weight,bias}}", f"{BLOCK}.attention.query_key_value.{{weight,bias}}", BY_HEAD),
    TensorRow(
        f"{OURS}.{{attn.o,ff.up,ff.down}}.{{weight,bias}}",
        f"{BLOCK}.{{attention.dense,mlp.dense_h_to_4h,mlp.dense_4h_to_h}}.{{weight,bias}}",
    ),
    TensorRow(f"{OURS}.{{attn,ff}}_residual.norm.{{weight,bias}}", f"{BLOCK}.{{input,post_attention}}_layernorm.{{weight,bias}}"),
    TensorRow(f"{OURS}.{{attn,ff}}_norm.{{weight,bias}}", f"{BLOCK}.{{input,post_attention}}_layernorm.{{weight,bias}}"),
    TensorRow("decoder.norm.{weight,bias}", "gpt_neox.final_layer_norm.{weight,bias}"),
    TensorRow("unembedding.weight", "embed_out.weight"),
)
FAMILIES = (
    Family(
        "gpt_neox",
        "GPTNeoXForCausalLM",
        "decoder",
        FIELDS,
        TENSORS,
        prefix="gpt_neox.",
        auto_class="AutoModelForCausalLM",
        pipeline="text-generation",
        derived=(r"gpt_neox\.layers\.\d+\.attention\.(masked_bias|bias|rotary_emb\.inv_freq)",),
    ),
)
