"""Values and rows that the tables of several families share."""

from collections.abc import Mapping
from typing import Any

from transom.exchange.config_rows import ConfigRow, Fields, Same

ACTIVATIONS: Mapping[str, str] = {
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "gelu_fast": "gelu-tanh",
    "gelu": "gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "relu2": "squared-relu",
}
"""Our kinds of feed-forward networks by the library's names of activations."""

GATED: Mapping[str, str] = {"silu": "swiglu", "swish": "swiglu", "gelu": "geglu", "relu": "reglu", "sigmoid": "glu"}
"""Our kinds of gated feed-forward networks by the library's names of activations."""

GATED_TANH: Mapping[str, str] = {"gelu_pytorch_tanh": "geglu-tanh", "gelu_new": "geglu-tanh", **GATED}
"""The same, for families whose default is the tanh form of GELU."""


def sizes(n_kv_heads: bool) -> tuple[ConfigRow, ...]:
    """Return the rows of the sizes of Llama-like decoders, with or without heads shared by queries."""
    rows: tuple[ConfigRow, ...] = (
        Same("d_model", "hidden_size"),
        Same("n_layers", "num_hidden_layers"),
        Same("n_heads", "num_attention_heads"),
        Same("d_ff", "intermediate_size"),
        Same("max_seq_len", "max_position_embeddings"),
        Same("vocab_size", "vocab_size"),
    )
    return (*rows, KeyValueHeads()) if n_kv_heads else rows


class KeyValueHeads:
    """The number of key-value heads, by default that of the query heads."""

    names = ("num_key_value_heads",)

    def read(self, foreign: Mapping[str, Any]) -> Fields:
        return {"n_kv_heads": foreign.get("num_key_value_heads") or foreign.get("num_attention_heads")}

    def write(self, ours: Mapping[str, Any]) -> Fields:
        return {"num_key_value_heads": ours["n_kv_heads"]}


class HeadSize:
    """The dimension of a head, by default d_model / n_heads. Values have the same dimension as queries and keys."""

    names = ("head_dim",)

    def __init__(self, default: int | None = None) -> None:
        """Store the size where the file omits it; None for d_model / n_heads."""
        self.default = default

    def read(self, foreign: Mapping[str, Any]) -> Fields:
        size = foreign.get("head_dim", self.default)
        return {} if size is None else {"d_head": size}

    def write(self, ours: Mapping[str, Any]) -> Fields:
        return {"head_dim": ours["d_head"]}
