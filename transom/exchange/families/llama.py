"""Llama (Touvron et al. 2023) and the decoders of its shape: Mistral, Mixtral, Qwen 2 and Qwen 3."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from transom.exchange.config_rows import Always, Choice, Computed, Dropout, Expect, Fields, Ignored, Same, Tied
from transom.exchange.family import Family
from transom.exchange.rope import RotaryRow
from transom.exchange.rows_shared import GATED, HeadSize, sizes
from transom.exchange.tensor_rows import TensorRow


def _read_window(foreign: Mapping[str, Any]) -> Fields:
    """Return the pattern of Mistral: a window in every block, or none."""
    size = foreign.get("sliding_window")
    return {} if size is None else {"attention.pattern": {"kind": "window", "size": size}}


def _write_window(ours: Mapping[str, Any]) -> Fields:
    return {"sliding_window": ours["attention.pattern.size"] if ours["attention.pattern.kind"] == "window" else None}


def layer_types(always: bool = False) -> Computed:
    """Return the row of windows by layer.

    Args:
        always: whether windows alternate with full attention, from the first layer on, where the file has no ``layer_types`` (Gemma 2).
            Else layers from ``max_window_layers`` on have a window, if ``use_sliding_window`` is set (Qwen).
    """

    def read(foreign: Mapping[str, Any]) -> Fields:
        size, n_layers, types = foreign.get("sliding_window"), foreign.get("num_hidden_layers"), foreign.get("layer_types")
        if size is None or not isinstance(n_layers, int) or not (always or foreign.get("use_sliding_window", False)):
            return {}
        if not isinstance(types, list):
            first = foreign.get("max_window_layers", 28)
            types = [_SLIDING if (i % 2 == 0 if always else i >= first) else _FULL for i in range(n_layers)]
        patterns = [{"kind": "window", "size": size} if kind == _SLIDING else {"kind": "full"} for kind in types]
        return {"attention.pattern": shortest_cycle(patterns)}

    def write(ours: Mapping[str, Any]) -> Fields:
        blocks = _block_patterns(ours)
        sizes = {block["size"] for block in blocks if block["kind"] == "window"}
        types = [_SLIDING if block["kind"] == "window" else _FULL for block in blocks]
        fields: Fields = {"sliding_window": min(sizes, default=None), "layer_types": types}
        if not always:
            fields |= {"use_sliding_window": bool(sizes), "max_window_layers": types.index(_SLIDING) if sizes else len(types)}
        return fields

    return Computed(("sliding_window", "use_sliding_window", "max_window_layers", "layer_types"), read, write)


_SLIDING, _FULL = "sliding_attention", "full_attention"


def shortest_cycle(patterns: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the shortest pattern, or cycle of patterns, that repeats to these patterns of the blocks.

    >>> shortest_cycle([{"kind": "full"}] * 3)
    {'kind': 'full'}
    """
    n = next(n for n in range(1, len(patterns) + 1) if all(patterns[i] == patterns[i % n] for i in range(len(patterns))))
    return patterns[0] if n == 1 else {"kind": "cycle", "patterns": list(patterns[:n])}


def _block_patterns(ours: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the pattern of each block."""
    cycle = ours.get("attention.pattern.patterns")
    if cycle is None:
        cycle = [{name.removeprefix(_PATTERN): value for name, value in ours.items() if name.startswith(_PATTERN)}]
    return [cycle[i % len(cycle)] for i in range(ours["n_layers"])]


_PATTERN = "attention.pattern."


SHARED = (
    Always({"norm.kind": "rmsnorm", "norm_placement": "pre"}),
    *sizes(n_kv_heads=True),
    HeadSize(),
    Same("norm.eps", "rms_norm_eps", 1e-6),
    Tied(False),
    Dropout("attention_dropout", ("attention_dropout",)),
    Always({"dropout": 0.0}),
)
GATE = Choice("feed_forward.kind", "hidden_act", GATED, "silu")
ATTENTION_BIAS = Computed(
    ("attention_bias",),
    lambda foreign: dict.fromkeys(("attention.qkv_bias", "attention.output_bias"), foreign.get("attention_bias", False)),
    lambda ours: {"attention_bias": ours["attention.qkv_bias"]},
)
NO_BIASES = Always({"attention.qkv_bias": False, "attention.output_bias": False})
OURS, BLOCK = "decoder.blocks.{i}", "model.layers.{i}"
ATTENTION = (
    TensorRow("embedding.tokens.weight", "model.embed_tokens.weight"),
    TensorRow(f"{OURS}.attn.{{q,k,v,o}}.{{weight,bias}}", f"{BLOCK}.self_attn.{{q,k,v,o}}_proj.{{weight,bias}}"),
    TensorRow(f"{OURS}.{{attn,ff}}_residual.norm.weight", f"{BLOCK}.{{input,post_attention}}_layernorm.weight"),
    TensorRow("decoder.norm.weight", "model.norm.weight"),
    TensorRow("unembedding.weight", "lm_head.weight"),
)
DENSE = (
    *ATTENTION,
    TensorRow(f"{OURS}.ff.{{gate,up,down}}.{{weight,bias}}", f"{BLOCK}.mlp.{{gate,up,down}}_proj.{{weight,bias}}"),
)
LLAMA = Family(
    "llama",
    "LlamaForCausalLM",
    "decoder",
    (
        *SHARED,
        GATE,
        RotaryRow(),
        ATTENTION_BIAS,
        Same("feed_forward.bias", "mlp_bias", False),
    ),
    DENSE,
    prefix="model.",
    auto_class="AutoModelForCausalLM",
    pipeline="text-generation",
    derived=(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",),
)
MISTRAL = replace(
    LLAMA,
    model_type="mistral",
    architecture="MistralForCausalLM",
    fields=(*SHARED, GATE, RotaryRow(), NO_BIASES, Computed(("sliding_window",), _read_window, _write_window)),
)
MIXTRAL = replace(
    LLAMA,
    model_type="mixtral",
    architecture="MixtralForCausalLM",
    fields=(
        *SHARED,
        RotaryRow(1e6),
        NO_BIASES,
        Computed(("sliding_window",), _read_window, _write_window),
        Always({"feed_forward.kind": "moe", "feed_forward.norm_topk_prob": True, "feed_forward.scoring_func": "softmax"}),
        Choice("feed_forward.expert.kind", "hidden_act", GATED, "silu"),
        Same("feed_forward.n_experts", "num_local_experts", 8),
        Same("feed_forward.top_k", "num_experts_per_tok", 2),
        Expect("router_jitter_noise", 0.0),
        Ignored(("router_aux_loss_coef",)),
    ),
    tensors=(
        *ATTENTION,
        TensorRow(f"{OURS}.ff.router.weight", f"{BLOCK}.block_sparse_moe.gate.weight"),
        TensorRow(f"{OURS}.ff.experts.{{e}}.{{gate,up,down}}.weight", f"{BLOCK}.block_sparse_moe.experts.{{e}}.{{w1,w3,w2}}.weight"),
    ),
)
QWEN2 = replace(
    LLAMA,
    model_type="qwen2",
    architecture="Qwen2ForCausalLM",
    fields=(*SHARED, GATE, RotaryRow(), Always({"attention.qkv_bias": True, "attention.output_bias": False}), layer_types()),
)
QWEN3 = replace(
    LLAMA,
    model_type="qwen3",
    architecture="Qwen3ForCausalLM",
    fields=(
        *SHARED,
        GATE,
        RotaryRow(),
        ATTENTION_BIAS,
        Computed(("rms_norm_eps",), lambda foreign: {"attention.qk_norm.eps": foreign.get("rms_norm_eps", 1e-6)}, lambda ours: {}),
        Always({"attention.qk_norm.kind": "rmsnorm"}),
        layer_types(),
    ),
    tensors=(*DENSE, TensorRow(f"{OURS}.attn.{{q,k}}_norm.weight", f"{BLOCK}.self_attn.{{q,k}}_norm.weight")),
)
FAMILIES = (LLAMA, MISTRAL, MIXTRAL, QWEN2, QWEN3)
