"""Marian's translators (Junczys-Dowmunt et al. 2018): the encoder-decoder of Vaswani et al. 2017, with sinusoids laid out in halves."""

import re
from collections.abc import Sequence

import torch
from torch import Tensor

from transom.exchange.config_rows import Always, Choice, Computed, ConfigRow, Dropout, Expect, Same
from transom.exchange.family import Family
from transom.exchange.rows_shared import ACTIVATIONS
from transom.exchange.tensor_rows import Configs, OneForeign, TensorRow

_OUTPUT_AXIS = re.compile(r"(o|down|norm)\.(weight|bias)")
"""Tensors whose first axis is the residual stream; the second axis of all other matrices is."""


class ResidualOrder(OneForeign):
    """Our tensor with the dimensions of the residual stream in another order.

    Ours has sines in the even dimensions and cosines in the odd ones (Vaswani et al. 2017). Marian has all sines first. A model is the
    same function of its tokens in any order of these dimensions; theirs holds ours 0, 2, 4, ..., 1, 3, 5, ...
    """

    def __init__(self, axis: int | None) -> None:
        """Store the axis of the residual stream; None for a tensor without it."""
        self.axis = axis

    def split(self, foreign: Tensor, like: Sequence[Tensor], configs: Configs) -> list[Tensor]:
        if self.axis is None:
            return [foreign.reshape(like[0].shape)]
        return [foreign.index_select(self.axis, self._order(foreign).argsort())]

    def join(self, ours: Sequence[Tensor], configs: Configs) -> Tensor:
        return ours[0] if self.axis is None else ours[0].index_select(self.axis, self._order(ours[0]))

    def _order(self, x: Tensor) -> Tensor:
        """Return the index of our dimension at each foreign one."""
        assert self.axis is not None
        n, device = x.shape[self.axis], x.device
        return torch.cat([torch.arange(0, n, 2, device=device), torch.arange(1, n, 2, device=device)])


class BiasRow(OneForeign):
    """A bias of the logits, stored as a matrix of one row."""

    def split(self, foreign: Tensor, like: Sequence[Tensor], configs: Configs) -> list[Tensor]:
        return [foreign[0]]

    def join(self, ours: Sequence[Tensor], configs: Configs) -> Tensor:
        return ours[0][None]


FIRST, SECOND, NEITHER = ResidualOrder(0), ResidualOrder(1), ResidualOrder(None)
FIELDS: tuple[ConfigRow, ...] = (
    Always({"norm.kind": "layernorm", "norm.eps": 1e-5, "norm_placement": "post", "position.kind": "sinusoidal", "head_bias": True}),
    Same("d_model", "d_model", 1024),
    Same("n_encoder_layers", "encoder_layers", 12),
    Same("n_decoder_layers", "decoder_layers", 12),
    Same("n_heads", "encoder_attention_heads", 16),
    Same("decoder_n_heads", "decoder_attention_heads", 16),
    Same("d_ff", "encoder_ffn_dim", 4096),
    Same("decoder_d_ff", "decoder_ffn_dim", 4096),
    Same("max_seq_len", "max_position_embeddings", 1024),
    Same("source_vocab_size", "vocab_size"),
    Computed(
        ("decoder_vocab_size",),
        lambda foreign: {"target_vocab_size": foreign.get("decoder_vocab_size") or foreign.get("vocab_size")},
        lambda ours: {"decoder_vocab_size": ours["target_vocab_size"]},
    ),
    Same("scale_embeddings", "scale_embedding", False),
    Choice("feed_forward.kind", "activation_function", ACTIVATIONS, "gelu"),
    Choice("tie_embeddings", "share_encoder_decoder_embeddings", {True: "all"}, True),
    Expect("tie_word_embeddings", True),
    Expect("normalize_before", False),
    Expect("normalize_embedding", False),
    Dropout("dropout", ("dropout",), 0.1),
    Dropout("attention_dropout", ("attention_dropout",)),
    Dropout("feed_forward_dropout", ("activation_dropout",)),
)


def tensors(stack: str, order: bool) -> tuple[TensorRow, ...]:
    """Return the rows of the blocks of one stack, ``encoder`` or ``decoder``.

    Args:
        stack: name of the stack, on both sides.
        order: whether the residual stream has another order on the foreign side.
    """
    ours, block = f"{stack}.blocks.{{i}}", f"model.{stack}.layers.{{i}}"
    first, second, neither = (FIRST, SECOND, NEITHER) if order else (NEITHER, NEITHER, NEITHER)
    rows = []
    for name, foreign in {"attn": "self_attn", **({"cross": "encoder_attn"} if stack == "decoder" else {})}.items():
        rows += [
            TensorRow(f"{ours}.{name}.{{q,k,v}}.weight", f"{block}.{foreign}.{{q,k,v}}_proj.weight", second),
            TensorRow(f"{ours}.{name}.{{q,k,v}}.bias", f"{block}.{foreign}.{{q,k,v}}_proj.bias", neither),
            TensorRow(f"{ours}.{name}.o.{{weight,bias}}", f"{block}.{foreign}.out_proj.{{weight,bias}}", first),
            TensorRow(f"{ours}.{name}_residual.norm.{{weight,bias}}", f"{block}.{foreign}_layer_norm.{{weight,bias}}", first),
        ]
    return (
        *rows,
        TensorRow(f"{ours}.ff.up.weight", f"{block}.fc1.weight", second),
        TensorRow(f"{ours}.ff.up.bias", f"{block}.fc1.bias", neither),
        TensorRow(f"{ours}.ff.down.{{weight,bias}}", f"{block}.fc2.{{weight,bias}}", first),
        TensorRow(f"{ours}.ff_residual.norm.{{weight,bias}}", f"{block}.final_layer_norm.{{weight,bias}}", first),
    )


MARIAN = Family(
    "marian",
    "MarianMTModel",
    "seq2seq",
    FIELDS,
    (
        TensorRow("source_embedding.tokens.weight", "model.shared.weight", SECOND),
        *tensors("encoder", order=True),
        *tensors("decoder", order=True),
        TensorRow("unembedding.bias", "final_logits_bias", BiasRow()),
    ),
    prefix="model.",
    auto_class="AutoModelForSeq2SeqLM",
    derived=(r"model\.(encoder|decoder)\.embed_(positions|tokens)\.weight", r"lm_head\.weight"),
)
FAMILIES = (MARIAN,)
