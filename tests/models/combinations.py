"""Random combinations of bricks in every family, and a batch that each of them reads."""

from dataclasses import replace
from typing import Any

import torch
from hypothesis import strategies as st
from pydantic import TypeAdapter
from torch import Tensor

from transom.config.architecture import TextNetwork, TwoSided
from transom.config.model import MaskedEncoder, Model, TextClassifier, TextEmbedder
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
    {"kind": "decoder", "n_layers": 2, "vocab_size": VOCAB, "mask": "prefix"},
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

NORMS = st.sampled_from(["layernorm", "rmsnorm", "dyt", {"kind": "layernorm", "bias": False}, "batchnorm"])
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
        {"kind": "any", "of": [{"kind": "window", "size": 2}, "prefix"]},
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
        "value_residual": st.sampled_from(["none", "none", "learned", {"kind": "fixed", "first": 0.7, "own": -0.4}]),
    }
)
LOOKING_BACK = [
    "linear",
    {"kind": "linear", "feature_map": "relu"},
    "performer",
    {"kind": "performer", "n_features": 5, "orthogonal": False},
]
APPROXIMATIONS = [
    *LOOKING_BACK,
    *({"kind": "linformer", "rank": rank} for rank in (2, 7)),
    *({"kind": "nystrom", "n_landmarks": n} for n in (2, 8)),
]
"""Those that decoders may have, and all: of texts of five tokens, some with more landmarks and some with fewer."""

NETWORK = st.tuples(
    st.sampled_from(["relu", "gelu", "gelu-tanh", "silu", "squared-relu", "glu", "reglu", "geglu", "swiglu"]), st.booleans()
).map(lambda drawn: {"kind": drawn[0], "bias": drawn[1]})
MIXTURE = st.fixed_dictionaries(
    {
        "kind": st.just("mixture"),
        "expert": NETWORK,
        "n_experts": st.sampled_from([2, 3]),
        "top_k": st.sampled_from([1, 2]),
        "normalise": st.just(False),
        "n_shared": st.sampled_from([0, 2]),
        "d_expert": st.sampled_from(["none", 5]),
        "scores": st.sampled_from(["softmax", "sigmoid"]),
        "balance": st.sampled_from(["loss", "bias", "none"]),
        "capacity": st.sampled_from(["none", 3.0]),  # enough for all tokens: what is dropped is tested with the layer
    }
)
FEED_FORWARD = st.one_of(NETWORK, MIXTURE)

SOURCE_ATTENTION = st.sampled_from(
    [
        "none",
        "additive",
        {"kind": "additive", "d_attention": 5},
        *({"kind": "luong", "score": score, "input_feeding": fed} for score in ("dot", "general", "concat") for fed in (True, False)),
        {"kind": "luong", "score": "concat", "d_attention": 5},
    ]
)
WIDTHS: list[dict[str, Any]] = [{"tie": "all"}, {"tie": "decoder"}, {"tie": "none"}, {"tie": "none", "d_embedding": 7}]
"""Tables that may be shared, and those that may not."""


DEPTHS = st.sampled_from(["full", *({"kind": "mixture", "capacity": 0.5, "every": every} for every in (1, 2))])


def fitting(fields: dict[str, Any]) -> dict[str, Any]:
    """Leave out what the schema does not let stand beside a mixture of depths."""
    if fields["depth"] == "full":
        return fields
    every = fields["depth"]["every"] if fields["attention"]["value_residual"] == "none" else 2
    experts = fields["feed_forward"]["kind"] == "mixture"
    return fields | {"depth": {**fields["depth"], "every": every}, **({"feed_forward": "swiglu"} if experts else {})}


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
            "depth": DEPTHS,
            "scale_embeddings": st.booleans(),
            "dropout": st.sampled_from([0.0, 0.2]),
        }
    ).map(fitting)


def recurrent(*kinds: str) -> st.SearchStrategy[dict[str, Any]]:
    """Draw a recurrent network: an encoder-decoder or a language model, where no kind is named."""
    shared = {
        "max_seq_len": st.just(16),
        "d_model": st.just(12),
        "cell": st.sampled_from(["rnn", "lstm", "gru"]),
        "dropout": st.sampled_from([0.0, 0.2]),
    }
    pairs = st.fixed_dictionaries(
        {
            "kind": st.just("recurrent-seq2seq"),
            "source_vocab_size": st.just(VOCAB),
            "target_vocab_size": st.just(VOCAB),
            "n_encoder_layers": st.sampled_from([1, 2, 3]),
            "n_decoder_layers": st.sampled_from([1, 2, 3]),
            "bidirectional": st.booleans(),
            "attention": SOURCE_ATTENTION,
        }
        | shared
    )
    text = st.fixed_dictionaries(
        {"kind": st.just("recurrent-decoder"), "vocab_size": st.just(VOCAB), "n_layers": st.sampled_from([1, 2, 3])} | shared
    )
    tied = st.tuples(pairs, st.sampled_from(WIDTHS)) | st.tuples(
        text, st.sampled_from([{**each, "tie": each["tie"] != "none"} for each in WIDTHS])
    )
    return tied.map(lambda drawn: drawn[0] | drawn[1]).filter(lambda fields: not kinds or fields["kind"] in kinds)


def combinations(families: list[dict[str, Any]] = FAMILIES) -> st.SearchStrategy[dict[str, Any]]:
    """Draw a family and its bricks, a quarter of them with attention approximated."""
    exact = st.tuples(bricks(), st.sampled_from(families)).map(lambda drawn: drawn[0] | drawn[1])
    return exact | exact | exact | exact.flatmap(approximated)


def approximated(fields: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Draw an approximation in place of a combination's exact attention, and of what does not go with it something else."""
    kinds = LOOKING_BACK if fields["kind"] in ("seq2seq", "decoder") else APPROXIMATIONS
    biased = (fields["position"] if isinstance(fields["position"], str) else fields["position"]["kind"]) in ("alibi", "relative")
    others = {"depth": "full"} | ({"position": "rotary"} if biased else {}) | ({"mask": "causal"} if "mask" in fields else {})
    return st.sampled_from(kinds).map(lambda kind: fields | others | {"attention": approximating(fields["attention"], kind)})


def approximating(attention: dict[str, Any], kind: Any) -> dict[str, Any]:
    """Put an approximation into a drawn attention, and leave out what does not go with it."""
    return {name: attention[name] for name in ("bias", "output_bias", "qk_norm", "value_residual")} | {"approximation": kind}


def described(fields: dict[str, Any]) -> TextNetwork:
    """Check a combination against the schema."""
    config: TextNetwork = TypeAdapter(Model).validate_python(fields)
    return config


def batch_for(config: TextNetwork, target: Sequences = TARGET, source: Sequences = SOURCE) -> Batch:
    """Make the batch that the family reads."""
    match config:
        case TwoSided():
            return TranslationBatch(source, target, LABELS, (0, 1))
        case MaskedEncoder():
            return MaskedBatch(source, source.tokens, source.tokens > 4, (0, 1))
        case TextEmbedder():
            return MatchedBatch(source, target, (0, 1))
        case TextClassifier():
            return LabelledBatch(source, torch.tensor([2, 0]), (0, 1))
        case _:
            return LanguageBatch(target, LABELS, (0, 1))


def prompt_for(config: TextNetwork) -> Sequences:
    """Give what ``encode`` reads before the first step: the source, or of a text the first token, which the first step reads."""
    return SOURCE if isinstance(config, TwoSided) else Sequences.pad(TARGET.tokens[:, :1].tolist())


def noisy(side: Sequences, token: int) -> Sequences:
    """Put another token into the padding."""
    return with_tokens(side, torch.where(side.segments > 0, side.tokens, token))


def with_tokens(side: Sequences, tokens: Tensor) -> Sequences:
    """Put other tokens in the same places."""
    return replace(side, tokens=tokens)
