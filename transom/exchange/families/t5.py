"""T5 and T5 v1.1 (Raffel et al. 2020; Shazeer 2020)."""

import math
from collections.abc import Mapping
from typing import Any

from transom.config.components import GatedFeedForwardConfig
from transom.exchange.config_rows import OWN_OUTPUT, Always, Computed, Dropout, Fields, Same, foreign_size
from transom.exchange.family import Family
from transom.exchange.rows_shared import ACTIVATIONS, GATED_TANH
from transom.exchange.tensor_rows import Configs, ScaledQuery, TensorRow


def _unscaled(configs: Configs) -> float:
    """Return sqrt(d_head): T5 divides scores by nothing."""
    return math.sqrt(configs.ours.d_head)


def _read_feed_forward(foreign: Mapping[str, Any]) -> Fields:
    name = str(foreign.get("feed_forward_proj", "relu"))
    if name == "gated-gelu":
        return {"feed_forward.kind": "geglu-tanh"}
    gated, activation = name.startswith("gated-"), name.removeprefix("gated-")
    return {"feed_forward.kind": (GATED_TANH if gated else ACTIVATIONS).get(activation, activation)}


def _write_feed_forward(ours: Mapping[str, Any]) -> Fields:
    kind = ours["feed_forward.kind"]
    if kind == "geglu-tanh":
        return {"feed_forward_proj": "gated-gelu"}
    gated = {of_ours: f"gated-{name}" for name, of_ours in reversed(list(GATED_TANH.items()))}
    return {"feed_forward_proj": gated.get(kind) or next((n for n, k in ACTIVATIONS.items() if k == kind), "relu")}


def _read_output(foreign: Mapping[str, Any]) -> Fields:
    """Return the scale of the logits, d_model^-0.5 in the first T5, whose output shares the matrix of the embeddings, and what is tied."""
    scaled = foreign.get("scale_decoder_outputs", foreign.get("tie_word_embeddings", True))
    tied = "inputs" if foreign.get(OWN_OUTPUT, False) else "all"
    return {"logit_scale": foreign_size(foreign, "d_model", 512) ** -0.5 if scaled else 1.0, "tie_embeddings": tied}


def _write_output(ours: Mapping[str, Any]) -> Fields:
    """Return the scale as ``scale_decoder_outputs``, and as the field from which the library derives it."""
    scaled = ours.get("logit_scale") == ours["d_model"] ** -0.5
    return {"scale_decoder_outputs": scaled, "tie_word_embeddings": scaled, OWN_OUTPUT: ours["tie_embeddings"] != "all"}


FIELDS = (
    Always({"norm.kind": "rmsnorm", "norm_placement": "pre", "position.kind": "relative", "scale_embeddings": False}),
    Always({"attention.qkv_bias": False, "attention.output_bias": False, "feed_forward.bias": False}),
    Same("d_model", "d_model", 512),
    Same("d_head", "d_kv", 64),
    Same("d_ff", "d_ff", 2048),
    Same("n_heads", "num_heads", 8),
    Same("n_encoder_layers", "num_layers", 6),
    Computed(
        ("num_decoder_layers",),
        lambda foreign: {"n_decoder_layers": foreign.get("num_decoder_layers") or foreign.get("num_layers", 6)},
        lambda ours: {"num_decoder_layers": ours["n_decoder_layers"]},
    ),
    Same("source_vocab_size", "vocab_size", 32128),
    Same("target_vocab_size", "vocab_size", 32128),
    Same("max_seq_len", "n_positions", 512),
    Same("norm.eps", "layer_norm_epsilon", 1e-6),
    Same("position.n_buckets", "relative_attention_num_buckets", 32),
    Same("position.max_distance", "relative_attention_max_distance", 128),
    Computed(("feed_forward_proj", "dense_act_fn", "is_gated_act"), _read_feed_forward, _write_feed_forward),
    Computed(("scale_decoder_outputs", "tie_word_embeddings"), _read_output, _write_output),
    Dropout("dropout", ("dropout_rate",), 0.1),
)


def is_gated(config: Any) -> bool:
    """Return whether the feed-forward network has a gate, so that W_1 is called ``wi_1`` and not ``wi``."""
    return isinstance(config.feed_forward, GatedFeedForwardConfig)


OURS = "{encoder,decoder}.blocks.{i}"
BLOCK = "{encoder,decoder}.block.{i}.layer"
TENSORS = (
    TensorRow("source_embedding.tokens.weight", "shared.weight"),
    TensorRow(
        "{source,target}_embedding.position.table.weight", "{encoder,decoder}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    ),
    TensorRow(f"{OURS}.attn.q.weight", f"{BLOCK}.0.SelfAttention.q.weight", ScaledQuery(_unscaled)),
    TensorRow(f"{OURS}.attn.{{k,v,o}}.weight", f"{BLOCK}.0.SelfAttention.{{k,v,o}}.weight"),
    TensorRow(f"{OURS}.attn_residual.norm.weight", f"{BLOCK}.0.layer_norm.weight"),
    TensorRow("decoder.blocks.{i}.cross.q.weight", "decoder.block.{i}.layer.1.EncDecAttention.q.weight", ScaledQuery(_unscaled)),
    TensorRow("decoder.blocks.{i}.cross.{k,v,o}.weight", "decoder.block.{i}.layer.1.EncDecAttention.{k,v,o}.weight"),
    TensorRow("decoder.blocks.{i}.cross_residual.norm.weight", "decoder.block.{i}.layer.1.layer_norm.weight"),
    *(
        row
        for stack, n in (("encoder", 1), ("decoder", 2))
        for row in (
            TensorRow(f"{stack}.blocks.{{i}}.ff_residual.norm.weight", f"{stack}.block.{{i}}.layer.{n}.layer_norm.weight"),
            TensorRow(f"{stack}.blocks.{{i}}.ff.gate.weight", f"{stack}.block.{{i}}.layer.{n}.DenseReluDense.wi_0.weight"),
            TensorRow(f"{stack}.blocks.{{i}}.ff.up.weight", f"{stack}.block.{{i}}.layer.{n}.DenseReluDense.wi_1.weight", when=is_gated),
            TensorRow(f"{stack}.blocks.{{i}}.ff.up.weight", f"{stack}.block.{{i}}.layer.{n}.DenseReluDense.wi.weight"),
            TensorRow(f"{stack}.blocks.{{i}}.ff.down.weight", f"{stack}.block.{{i}}.layer.{n}.DenseReluDense.wo.weight"),
        )
    ),
    TensorRow("{encoder,decoder}.norm.weight", "{encoder,decoder}.final_layer_norm.weight"),
    TensorRow("unembedding.weight", "lm_head.weight"),
)
FAMILIES = (
    Family(
        "t5",
        "T5ForConditionalGeneration",
        "seq2seq",
        FIELDS,
        TENSORS,
        prefix="",
        auto_class="AutoModelForSeq2SeqLM",
        derived=(
            r"(encoder|decoder)\.embed_tokens\.weight",
            r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
        ),
    ),
)
