"""BERT (Devlin et al. 2019), RoBERTa (Liu et al. 2019), DistilBERT (Sanh et al. 2019) and sentence embedders of their shape."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from transom.exchange.config_rows import Always, Choice, ConfigRow, Dropout, Expect, Fields, Same, Tied, foreign_size
from transom.exchange.family import Family
from transom.exchange.rows_shared import ACTIVATIONS
from transom.exchange.tensor_rows import AfterRows, TensorRow

OURS = "encoder.blocks.{i}"
SHARED: tuple[ConfigRow, ...] = (
    Always({"norm.kind": "layernorm", "norm_placement": "post", "position.kind": "learned", "embedding_norm": True}),
)
BERT_FIELDS: tuple[ConfigRow, ...] = (
    *SHARED,
    Same("d_model", "hidden_size", 768),
    Same("n_layers", "num_hidden_layers", 12),
    Same("n_heads", "num_attention_heads", 12),
    Same("d_ff", "intermediate_size", 3072),
    Same("vocab_size", "vocab_size", 30522),
    Same("n_token_types", "type_vocab_size", 2),
    Same("norm.eps", "layer_norm_eps", 1e-12),
    Choice("feed_forward.kind", "hidden_act", ACTIVATIONS, "gelu"),
    Computed(("pooler_act", "pooler_output_size"), lambda foreign: {}, lambda ours: {}),
    Expect("is_decoder", False),
    Expect("position_embedding_type", "absolute"),
    Dropout("dropout", ("hidden_dropout_prob",), 0.1),
    Dropout("attention_dropout", ("attention_probs_dropout_prob",), 0.1),
)


class OffsetLength:
    """The number of positions of RoBERTa, whose table has rows before that of position 0."""

    names = ("max_position_embeddings",)

    def __init__(self, n_unused: int) -> None:
        """Store the number of these rows."""
        self.n_unused = n_unused

    def read(self, foreign: Mapping[str, Any]) -> Fields:
        return {"max_seq_len": foreign_size(foreign, "max_position_embeddings", 514) - self.n_unused}

    def write(self, ours: Mapping[str, Any]) -> Fields:
        return {"max_position_embeddings": ours["max_seq_len"] + self.n_unused}


ROBERTA_UNUSED = 2
"""Rows of RoBERTa's table of positions before that of position 0: padding_idx + 1."""


def encoder_tensors(base: str, positions: TensorRow) -> tuple[TensorRow, ...]:
    """Return the rows of embeddings and blocks; ``base`` is the first part of the foreign names."""
    block = f"{base}.encoder.layer.{{i}}"
    return (
        TensorRow("embedding.tokens.weight", f"{base}.embeddings.word_embeddings.weight"),
        TensorRow("embedding.token_types.weight", f"{base}.embeddings.token_type_embeddings.weight"),
        positions,
        TensorRow("embedding.norm.{weight,bias}", f"{base}.embeddings.LayerNorm.{{weight,bias}}"),
        TensorRow(f"{OURS}.attn.{{q,k,v}}.{{weight,bias}}", f"{block}.attention.self.{{query,key,value}}.{{weight,bias}}"),
        TensorRow(
            f"{OURS}.{{attn.o,ff.up,ff.down}}.{{weight,bias}}",
            f"{block}.{{attention.output.dense,intermediate.dense,output.dense}}.{{weight,bias}}",
        ),
        TensorRow(
            f"{OURS}.{{attn,ff}}_residual.norm.{{weight,bias}}", f"{block}.{{attention.output,output}}.LayerNorm.{{weight,bias}}"
        ),
    )


BERT_TENSORS = encoder_tensors(
    "bert", TensorRow("embedding.position.table.weight", "bert.embeddings.position_embeddings.weight")
)
ROBERTA_TENSORS = encoder_tensors(
    "roberta",
    TensorRow("embedding.position.table.weight", "roberta.embeddings.position_embeddings.weight", AfterRows(ROBERTA_UNUSED)),
)
BERT_LM = Family(
    "bert",
    "BertForMaskedLM",
    "encoder",
    (
        *BERT_FIELDS,
        Same("max_seq_len", "max_position_embeddings", 512),
        Tied(True),
        Always({"head_bias": True}),
    ),
    (
        *BERT_TENSORS,
        TensorRow("transform.{weight,bias}", "cls.predictions.transform.dense.{weight,bias}"),
        TensorRow("transform_norm.{weight,bias}", "cls.predictions.transform.LayerNorm.{weight,bias}"),
        TensorRow("unembedding.weight", "cls.predictions.decoder.weight"),
        TensorRow("unembedding.bias", "cls.predictions.bias"),
    ),
    prefix="bert.",
    auto_class="AutoModelForMaskedLM",
    pipeline="fill-mask",
    derived=(r"bert\.embeddings\.position_ids", r"cls\.predictions\.decoder\.bias", r"cls\.seq_relationship\..*", r"bert\.pooler\..*"),
)
BERT_CLASSES = replace(
    BERT_LM,
    architecture="BertForSequenceClassification",
    kind="text-classifier",
    fields=(
        *BERT_FIELDS,
        Same("max_seq_len", "max_position_embeddings", 512),
        Always({"head_bias": True, "pooling": "cls"}),
        Dropout("pooler_dropout", ("classifier_dropout",)),
    ),
    tensors=(
        *BERT_TENSORS,
        TensorRow("pooler.{weight,bias}", "bert.pooler.dense.{weight,bias}"),
        TensorRow("unembedding.{weight,bias}", "classifier.{weight,bias}"),
    ),
    auto_class="AutoModelForSequenceClassification",
    pipeline="text-classification",
    derived=(r"bert\.embeddings\.position_ids",),
)
ROBERTA_LM = replace(
    BERT_LM,
    model_type="roberta",
    architecture="RobertaForMaskedLM",
    fields=(
        *BERT_FIELDS,
        OffsetLength(ROBERTA_UNUSED),
        Tied(True),
        Always({"head_bias": True}),
    ),
    tensors=(
        *ROBERTA_TENSORS,
        TensorRow("transform.{weight,bias}", "lm_head.dense.{weight,bias}"),
        TensorRow("transform_norm.{weight,bias}", "lm_head.layer_norm.{weight,bias}"),
        TensorRow("unembedding.weight", "lm_head.decoder.weight"),
        TensorRow("unembedding.bias", "lm_head.bias"),
    ),
    prefix="roberta.",
    derived=(r"roberta\.embeddings\.position_ids", r"lm_head\.decoder\.bias", r"roberta\.pooler\..*"),
)
ROBERTA_CLASSES = replace(
    ROBERTA_LM,
    architecture="RobertaForSequenceClassification",
    kind="text-classifier",
    fields=(
        *BERT_FIELDS,
        OffsetLength(ROBERTA_UNUSED),
        Always({"head_bias": True, "pooling": "cls"}),
        Dropout("pooler_dropout", ("classifier_dropout",)),
    ),
    tensors=(
        *ROBERTA_TENSORS,
        TensorRow("pooler.{weight,bias}", "classifier.dense.{weight,bias}"),
        TensorRow("unembedding.{weight,bias}", "classifier.out_proj.{weight,bias}"),
    ),
    auto_class="AutoModelForSequenceClassification",
    pipeline="text-classification",
    derived=(r"roberta\.embeddings\.position_ids",),
)
DISTILBERT_FIELDS: tuple[ConfigRow, ...] = (
    *SHARED,
    Same("d_model", "dim", 768),
    Same("n_layers", "n_layers", 6),
    Same("n_heads", "n_heads", 12),
    Same("d_ff", "hidden_dim", 3072),
    Same("vocab_size", "vocab_size", 30522),
    Same("max_seq_len", "max_position_embeddings", 512),
    Always({"norm.eps": 1e-12, "head_bias": True}),
    Choice("feed_forward.kind", "activation", ACTIVATIONS, "gelu"),
    Expect("sinusoidal_pos_embds", False),
    Dropout("dropout", ("dropout",), 0.1),
    Dropout("attention_dropout", ("attention_dropout",), 0.1),
)
BLOCK = "distilbert.transformer.layer.{i}"
DISTILBERT_TENSORS = (
    TensorRow("embedding.tokens.weight", "distilbert.embeddings.word_embeddings.weight"),
    TensorRow("embedding.position.table.weight", "distilbert.embeddings.position_embeddings.weight"),
    TensorRow("embedding.norm.{weight,bias}", "distilbert.embeddings.LayerNorm.{weight,bias}"),
    TensorRow(f"{OURS}.attn.{{q,k,v,o}}.{{weight,bias}}", f"{BLOCK}.attention.{{q,k,v,out}}_lin.{{weight,bias}}"),
    TensorRow(f"{OURS}.ff.{{up,down}}.{{weight,bias}}", f"{BLOCK}.ffn.{{lin1,lin2}}.{{weight,bias}}"),
    TensorRow(f"{OURS}.{{attn,ff}}_residual.norm.{{weight,bias}}", f"{BLOCK}.{{sa,output}}_layer_norm.{{weight,bias}}"),
)
DISTILBERT_LM = replace(
    BERT_LM,
    model_type="distilbert",
    architecture="DistilBertForMaskedLM",
    fields=(*DISTILBERT_FIELDS, Tied(True)),
    tensors=(
        *DISTILBERT_TENSORS,
        TensorRow("transform.{weight,bias}", "vocab_transform.{weight,bias}"),
        TensorRow("transform_norm.{weight,bias}", "vocab_layer_norm.{weight,bias}"),
        TensorRow("unembedding.{weight,bias}", "vocab_projector.{weight,bias}"),
    ),
    prefix="distilbert.",
    derived=(),
)
DISTILBERT_CLASSES = replace(
    DISTILBERT_LM,
    architecture="DistilBertForSequenceClassification",
    kind="text-classifier",
    fields=(
        *DISTILBERT_FIELDS,
        Always({"pooling": "cls", "pooler_activation": "relu"}),
        Dropout("pooler_dropout", ("seq_classif_dropout",), 0.2),
    ),
    tensors=(
        *DISTILBERT_TENSORS,
        TensorRow("pooler.{weight,bias}", "pre_classifier.{weight,bias}"),
        TensorRow("unembedding.{weight,bias}", "classifier.{weight,bias}"),
    ),
    auto_class="AutoModelForSequenceClassification",
    pipeline="text-classification",
)
FAMILIES = (BERT_LM, BERT_CLASSES, ROBERTA_LM, ROBERTA_CLASSES, DISTILBERT_LM, DISTILBERT_CLASSES)
