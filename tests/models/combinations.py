"""Random combinations of bricks in every family, and a batch that each of them reads."""

from dataclasses import replace
from typing import Any

import torch
from hypothesis import strategies as st
from pydantic import TypeAdapter
from torch import Tensor

from transom.config.model import MaskedEncoder, Model, Seq2Seq, TextClassifier, TextEmbedder, TextTransformer
from transom.inputs.batch import Batch, LabelledBatch, LanguageBatch, MaskedBatch, MatchedBatch, Sequences, TranslationBatch

VOCAB = 9
TARGET = Sequences.pad([[1, 5, 8, 4], [1, 7]])
LABELS = torch.tensor([[5, 8, 4, 2], [7, 2, 0, 0]])
SOURCE = Sequences.pad([[3, 4, 5, 6, 2], [7, 2]])
FAMILIES: list[dict[str, Any]] = [
    *(
        {
            "kind": "seq2seq",
            "n_encoder_layers": 2,
            "n_decoder_layers": 2,
            "source_vocab_size": VOCAB,
            "target_vocab_size": VOCAB,
            "tie": tie,
        }
        for tie in ("all", "decoder", "none")
    ),
    *({"kind": "decoder", "n_layers": 2, "vocab_size": VOCAB, "tie": tie} for tie in (True, False)),
]
"""Those that write text."""

ENCODERS: list[dict[str, Any]] = [
    *({"kind": "encoder", "n_layers": 2, "vocab_size": VOCAB, "tie": tie} for tie in (True, False)),
    *(
        {"kind": "text-classifier", "n_layers": 2, "vocab_size": VOCAB, "classes": ["a", "b", "c"], "pool": pool}
        for pool in ("start", "mean")
    ),
    {"kind": "text-embedder", "n_layers": 2, "vocab_size": VOCAB, "temperature": 0.5},
]

NORMS = st.sampled_from(["layernorm", "rmsnorm", "dyt", {"kind": "layernorm", "bias": False}])
POSITIONS = st.sampled_from(
    [
        *("sinusoidal", "learned", "rotary", "alibi", "relative", "none"),
        {"kind": "rotary", "share": 0.5},
        {"kind": "rotary", "scaling": "yarn", "factor": 4.0},
        {"kind": "relative", "n_buckets": 6, "max_distance": 5},
    ]
)
PATTERNS = st.sampled_from(
    [
        *("full", "window", "local", "logarithmic"),
        {"kind": "window", "size": 2},
        {"kind": "strided", "stride": 2},
        {"kind": "all", "of": [{"kind": "window", "size": 4}, {"kind": "strided", "stride": 2}]},
        {"kind": "any", "of": [{"kind": "local", "size": 2}, {"kind": "summary", "stride": 3, "columns": 1}]},
        {"kind": "any", "of": [{"kind": "random", "size": 1}, {"kind": "global"}, {"kind": "window", "size": 1}]},
        [{"kind": "not", "of": {"kind": "strided", "stride": 2}}, "full"],
        [{"kind": "window", "size": 2}, {"kind": "logarithmic", "local": 1}, "full"],
    ]
)
"""Of texts of five tokens, none so narrow that a token sees itself alone, since then queries and keys learn nothing."""

ATTENTION = st.fixed_dictionaries(
    {
        "pattern": PATTERNS,
        "bias": st.booleans(),
        "output_bias": st.booleans(),
        "qk_norm": st.sampled_from(["none", "rmsnorm", "layernorm"]),
        "softcap": st.sampled_from(["none", 1.5]),
        "sinks": st.booleans(),
    }
)
FEED_FORWARD = st.tuples(
    st.sampled_from(["relu", "gelu", "gelu-tanh", "silu", "squared-relu", "glu", "reglu", "geglu", "swiglu"]), st.booleans()
).map(lambda drawn: {"kind": drawn[0], "bias": drawn[1]})


def bricks() -> st.SearchStrategy[dict[str, Any]]:
    """Draw the fields that all families share."""
    return st.fixed_dictionaries(
        {
            "d_model": st.just(12),
            "n_heads": st.just(6),
            "n_kv_heads": st.sampled_from([6, 3, 1]),
            "d_head": st.sampled_from([4, 5, 6]),
            "d_value": st.sampled_from([2, 3]),
            "d_ff": st.sampled_from([8, 13]),
            "max_seq_len": st.just(16),
            "norm": NORMS,
            "norm_placement": st.sampled_from(["post", "pre", "sandwich", "parallel"]),
            "position": POSITIONS,
            "attention": ATTENTION,
            "feed_forward": FEED_FORWARD,
            "scale_embeddings": st.booleans(),
            "dropout": st.sampled_from([0.0, 0.2]),
        }
    )


def combinations(families: list[dict[str, Any]] = FAMILIES) -> st.SearchStrategy[dict[str, Any]]:
    """Draw a family and its bricks."""
    return st.tuples(bricks(), st.sampled_from(families)).map(lambda drawn: drawn[0] | drawn[1])


def described(fields: dict[str, Any]) -> TextTransformer:
    """Check a combination against the schema."""
    config: TextTransformer = TypeAdapter(Model).validate_python(fields)
    return config


def batch_for(config: TextTransformer, target: Sequences = TARGET, source: Sequences = SOURCE) -> Batch:
    """Make the batch that the family reads."""
    match config:
        case Seq2Seq():
            return TranslationBatch(source, target, LABELS, (0, 1))
        case MaskedEncoder():
            return MaskedBatch(source, source.tokens, source.tokens > 4, (0, 1))
        case TextEmbedder():
            return MatchedBatch(source, TARGET, (0, 1))
        case TextClassifier():
            return LabelledBatch(source, torch.tensor([2, 0]), (0, 1))
        case _:
            return LanguageBatch(target, LABELS, (0, 1))


def prompt_for(config: TextTransformer) -> Sequences:
    """Give what ``encode`` reads before the first step: the source, or of a text the first token, which the first step reads."""
    return SOURCE if isinstance(config, Seq2Seq) else Sequences.pad(TARGET.tokens[:, :1].tolist())


def noisy(side: Sequences, token: int) -> Sequences:
    """Put another token into the padding."""
    return with_tokens(side, torch.where(side.segments > 0, side.tokens, token))


def with_tokens(side: Sequences, tokens: Tensor) -> Sequences:
    """Put other tokens in the same places."""
    return replace(side, tokens=tokens)
