"""BART (Lewis et al. 2020)."""

from transom.exchange.config_rows import Always, ConfigRow
from transom.exchange.families.marian import FIELDS as MARIAN_FIELDS
from transom.exchange.families.marian import BiasRow, tensors
from transom.exchange.family import Family
from transom.exchange.tensor_rows import AfterRows, TensorRow

UNUSED = 2
"""Rows of the tables of positions before that of position 0."""

FIELDS: tuple[ConfigRow, ...] = (
    *(row for row in MARIAN_FIELDS if not isinstance(row, Always) and "share_encoder_decoder_embeddings" not in row.names),
    Always(
        {
            "norm.kind": "layernorm",
            "norm.eps": 1e-5,
            "norm_placement": "post",
            "position.kind": "learned",
            "embedding_norm": True,
            "tie_embeddings": "all",
            "head_bias": True,
        }
    ),
)
FAMILIES = (
    Family(
        "bart",
        "BartForConditionalGeneration",
        "seq2seq",
        FIELDS,
        (
            TensorRow("source_embedding.tokens.weight", "model.shared.weight"),
            TensorRow(
                "{source,target}_embedding.position.table.weight", "model.{encoder,decoder}.embed_positions.weight", AfterRows(UNUSED)
            ),
            TensorRow("{source,target}_embedding.norm.{weight,bias}", "model.{encoder,decoder}.layernorm_embedding.{weight,bias}"),
            *tensors("encoder", order=False),
            *tensors("decoder", order=False),
            TensorRow("unembedding.bias", "final_logits_bias", BiasRow()),
        ),
        prefix="model.",
        auto_class="AutoModelForSeq2SeqLM",
        derived=(r"model\.(encoder|decoder)\.embed_tokens\.weight", r"lm_head\.weight"),
    ),
)
