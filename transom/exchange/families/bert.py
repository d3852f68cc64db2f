"""BERT (Devlin et al. 2019), RoBERTa (Liu et al. 2019), DistilBERT (Sanh et al. 2019) and sentence embedders of their shape.

Each encoder has three families: with the head for masked tokens, with a classifier, and alone.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from transom.exchange.config_rows import Always, Choice, ConfigRow, Dropout, Expect, Fields, Ignored, Same, Tied, foreign_size
from transom.exchange.family import Family
from transom.exchange.rows_shared import ACTIVATIONS
from transom.exchange.tensor_rows import EQUAL, AfterRows, TensorRow, Transform

OURS = "encoder.blocks.{i}"
UNUSED_POSITIONS = 2
"""Rows of RoBERTa's table of positions before that of position 0: padding_idx + 1."""


class OffsetLength:
    """The number of positions of RoBERTa, whose table has rows before that of position 0."""

    names = ("max_position_embeddings",)

    def read(self, foreign: Mapping[str, Any]) -> Fields:
        return {"max_seq_len": foreign_size(foreign, "max_position_embeddings", 514) - UNUSED_POSITIONS}

    def write(self, ours: Mapping[str, Any]) -> Fields:
        return {"max_position_embeddings": ours["max_seq_len"] + UNUSED_POSITIONS}


class TokenTypes:
    """The number of token types: one type whose embedding is 0 where our model has none."""

    names = ("type_vocab_size",)

    def read(self, foreign: Mapping[str, Any]) -> Fields:
        return {"n_token_types": foreign.get("type_vocab_size", 2)}

    def write(self, ours: Mapping[str, Any]) -> Fields:
        return {"type_vocab_size": ours["n_token_types"] or 1}


SHARED = Always({"norm.kind": "layernorm", "norm_placement": "post", "position.kind": "learned", "embedding_norm": True})
BERT_FIELDS: tuple[ConfigRow, ...] = (
    SHARED,
    Same("d_model", "hidden_size", 768),
    Same("n_layers", "num_hidden_layers", 12),
    Same("n_heads", "num_attention_heads", 12),
    Same("d_ff", "intermediate_size", 3072),
    Same("vocab_size", "vocab_size", 30522),
    TokenTypes(),
    Same("norm.eps", "layer_norm_eps", 1e-12),
    Choice("feed_forward.kind", "hidden_act", ACTIVATIONS, "gelu"),
    Expect("is_decoder", False),
    Expect("position_embedding_type", "absolute"),
    Dropout("dropout", ("hidden_dropout_prob",), 0.1),
    Dropout("attention_dropout", ("attention_probs_dropout_prob",), 0.1),
)
DISTILBERT_FIELDS: tuple[ConfigRow, ...] = (
    SHARED,
    Same("d_model", "dim", 768),
    Same("n_layers", "n_layers", 6),
    Same("n_heads", "n_heads", 12),
    Same("d_ff", "hidden_dim", 3072),
    Same("vocab_size", "vocab_size", 30522),
    Same("max_seq_len", "max_position_embeddings", 512),
    Always({"norm.eps": 1e-12}),
    Choice("feed_forward.kind", "activation", ACTIVATIONS, "gelu"),
    Expect("sinusoidal_pos_embds", False),
    Dropout("dropout", ("dropout",), 0.1),
    Dropout("attention_dropout", ("attention_dropout",), 0.1),
    Ignored(("qa_dropout",)),
)


def bert_tensors(base: str, positions: Transform = EQUAL) -> tuple[TensorRow, ...]:
    """Return the rows of embeddings and blocks.

    Args:
        base: first part of the foreign names, such as ``bert.``; empty for the encoder alone.
        positions: transform of the table of positions.
    """
    block = f"{base}encoder.layer.{{i}}"
    return (
        TensorRow("embedding.tokens.weight", f"{base}embeddings.word_embeddings.weight"),
        TensorRow("embedding.token_types.weight", f"{base}embeddings.token_type_embeddings.weight"),
        TensorRow("embedding.position.table.weight", f"{base}embeddings.position_embeddings.weight", positions),
        TensorRow("embedding.norm.{weight,bias}", f"{base}embeddings.LayerNorm.{{weight,bias}}"),
        TensorRow(f"{OURS}.attn.{{q,k,v}}.{{weight,bias}}", f"{block}.attention.self.{{query,key,value}}.{{weight,bias}}"),
        TensorRow(
            f"{OURS}.{{attn.o,ff.up,ff.down}}.{{weight,bias}}",
            f"{block}.{{attention.output.dense,intermediate.dense,output.dense}}.{{weight,bias}}",
        ),
        TensorRow(f"{OURS}.{{attn,ff}}_residual.norm.{{weight,bias}}", f"{block}.{{attention.output,output}}.LayerNorm.{{weight,bias}}"),
    )


def roberta_tensors(base: str) -> tuple[TensorRow, ...]:
    """Return the rows of embeddings and blocks, as ``bert_tensors``."""
    return bert_tensors(base, AfterRows(UNUSED_POSITIONS))


def distilbert_tensors(base: str) -> tuple[TensorRow, ...]:
    """Return the rows of embeddings and blocks, as ``bert_tensors``."""
    block = f"{base}transformer.layer.{{i}}"
    return (
        TensorRow("embedding.tokens.weight", f"{base}embeddings.word_embeddings.weight"),
        TensorRow("embedding.position.table.weight", f"{base}embeddings.position_embeddings.weight"),
        TensorRow("embedding.norm.{weight,bias}", f"{base}embeddings.LayerNorm.{{weight,bias}}"),
        TensorRow(f"{OURS}.attn.{{q,k,v,o}}.{{weight,bias}}", f"{block}.attention.{{q,k,v,out}}_lin.{{weight,bias}}"),
        TensorRow(f"{OURS}.ff.{{up,down}}.{{weight,bias}}", f"{block}.ffn.{{lin1,lin2}}.{{weight,bias}}"),
        TensorRow(f"{OURS}.{{attn,ff}}_residual.norm.{{weight,bias}}", f"{block}.{{sa,output}}_layer_norm.{{weight,bias}}"),
    )


def linear(ours: str, foreign: str) -> TensorRow:
    """Return the row of a linear layer or norm."""
    return TensorRow(f"{ours}.{{weight,bias}}", f"{foreign}.{{weight,bias}}")


class Head(NamedTuple):
    """Rows of what follows an encoder."""

    fields: tuple[ConfigRow, ...]
    tensors: tuple[TensorRow, ...]


BIAS, UNTIED = Always({"head_bias": True}), Ignored(("tie_word_embeddings",))
FIRST = Always({"pooling": "cls"})
MASKED = {
    "bert": Head(
        (BIAS, Tied(True), Choice("head_activation", "hidden_act", ACTIVATIONS, "gelu")),
        (
            linear("transform", "cls.predictions.transform.dense"),
            linear("transform_norm", "cls.predictions.transform.LayerNorm"),
            TensorRow("unembedding.weight", "cls.predictions.decoder.weight"),
            TensorRow("unembedding.bias", "cls.predictions.bias"),
        ),
    ),
    "roberta": Head(
        (BIAS, Tied(True), Always({"head_activation": "gelu"})),
        (
            linear("transform", "lm_head.dense"),
            linear("transform_norm", "lm_head.layer_norm"),
            TensorRow("unembedding.weight", "lm_head.decoder.weight"),
            TensorRow("unembedding.bias", "lm_head.bias"),
        ),
    ),
    "distilbert": Head(
        (BIAS, Tied(True), Choice("head_activation", "activation", ACTIVATIONS, "gelu"), Ignored(("seq_classif_dropout",))),
        (linear("transform", "vocab_transform"), linear("transform_norm", "vocab_layer_norm"), linear("unembedding", "vocab_projector")),
    ),
}
CLASSES = {
    "bert": Head(
        (BIAS, UNTIED, FIRST, Dropout("pooler_dropout", ("classifier_dropout",))),
        (linear("pooler", "bert.pooler.dense"), linear("unembedding", "classifier")),
    ),
    "roberta": Head(
        (BIAS, UNTIED, FIRST, Dropout("pooler_dropout", ("classifier_dropout",)), Dropout("pooler_input_dropout", ("classifier_dropout",))),
        (linear("pooler", "classifier.dense"), linear("unembedding", "classifier.out_proj")),
    ),
    "distilbert": Head(
        (BIAS, UNTIED, FIRST, Always({"pooler_activation": "relu"}), Dropout("pooler_dropout", ("seq_classif_dropout",), 0.2)),
        (linear("pooler", "pre_classifier"), linear("unembedding", "classifier")),
    ),
}
ALONE = Head((UNTIED, Ignored(("classifier_dropout", "seq_classif_dropout"))), ())
LENGTH = Same("max_seq_len", "max_position_embeddings", 512)
ENCODERS = {
    "bert": ("Bert", (*BERT_FIELDS, LENGTH), bert_tensors),
    "roberta": ("Roberta", (*BERT_FIELDS, OffsetLength()), roberta_tensors),
    "distilbert": ("DistilBert", DISTILBERT_FIELDS, distilbert_tensors),
}
"""First part of the class names, rows of fields, and rows of tensors of each encoder."""

COMPUTED = (r"(.*\.)?embeddings\.position_ids", r"cls\.predictions\.decoder\.bias", r"lm_head\.decoder\.bias", r"cls\.seq_relationship\..*")
"""Tensors that files of these families repeat or have no use for."""

POOLER = (r"(.*\.)?pooler\..*",)
"""Tensors that only a classifier uses."""


def families(model_type: str) -> tuple[Family, ...]:
    """Return the three families of an encoder."""
    name, fields, tensors = ENCODERS[model_type]
    base = f"{model_type}."

    def family(suffix: str, kind: str, head: Head, prefix: str, use: tuple[str, str], derived: tuple[str, ...] = POOLER) -> Family:
        rows = (*tensors(prefix), *head.tensors)
        return Family(model_type, name + suffix, kind, (*fields, *head.fields), rows, prefix, *use, (*COMPUTED, *derived))

    classes = ("AutoModelForSequenceClassification", "text-classification")
    return (
        family("ForMaskedLM", "encoder", MASKED[model_type], base, ("AutoModelForMaskedLM", "fill-mask")),
        family("ForSequenceClassification", "text-classifier", CLASSES[model_type], base, classes, ()),
        family("Model", "text-embedder", ALONE, "", ("AutoModel", "feature-extraction")),
    )


FAMILIES = tuple(family for model_type in ENCODERS for family in families(model_type))
