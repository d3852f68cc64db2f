"""Random combinations of components in every family, fixed ones that cover each component, and a batch for each."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import cycle, islice
from typing import Any, Literal, TypeVar, get_args, get_origin

import torch
from hypothesis import example
from hypothesis import strategies as st
from pydantic import TypeAdapter
from torch import Tensor

from transom.config.architecture import EncoderDecoderConfig, TextModelConfig
from transom.config.model import AnyModel, MaskedLMConfig, TextClassifierConfig, TextEmbedderConfig
from transom.config.schema import ComponentConfig, Schema, allowed_schemas, allowed_types, list_item_schemas
from transom.data.batch import Batch, ContrastiveBatch, LabeledTextBatch, LanguageBatch, MaskedBatch, PaddedSequences, TranslationBatch
from transom.tasks.tagging.schema import TokenTaggerConfig

VOCAB = 9
TARGET = PaddedSequences.pad([[1, 5, 8, 4], [1, 7]])
LABELS = torch.tensor([[5, 8, 4, 2], [7, 2, 0, 0]])
SOURCE = PaddedSequences.pad([[3, 4, 5, 6, 2], [7, 2]])
FAMILIES: list[dict[str, Any]] = [
    *(
        {
            "kind": "seq2seq",
            "n_encoder_layers": 2,
            "n_decoder_layers": 2,
            "source_vocab_size": VOCAB,
            "target_vocab_size": VOCAB,
            "tie_embeddings": tie,
            "head_bias": tie == "decoder",
        }
        for tie in ("all", "decoder", "none")
    ),
    *({"kind": "decoder", "n_layers": 2, "vocab_size": VOCAB, "tie_embeddings": tie, "head_bias": not tie} for tie in (True, False)),
    {"kind": "decoder", "n_layers": 2, "vocab_size": VOCAB, "mask": "prefix-lm"},
    {
        "kind": "seq2seq",
        "n_encoder_layers": 2,
        "n_decoder_layers": 2,
        "tie_embeddings": "inputs",
        "source_vocab_size": VOCAB,
        "target_vocab_size": VOCAB,
    },
]
"""Families that generate text."""

ENCODERS: list[dict[str, Any]] = [
    *({"kind": "encoder", "n_layers": 2, "vocab_size": VOCAB, "tie_embeddings": tie, "head_bias": tie} for tie in (True, False)),
    *(
        {
            "kind": "text-classifier",
            "n_layers": 2,
            "vocab_size": VOCAB,
            "classes": ["a", "b", "c"],
            "pooling": pool,
            "head_bias": pool == "cls",
        }
        for pool in ("cls", "mean")
    ),
    {"kind": "token-tagger", "n_layers": 2, "vocab_size": VOCAB, "classes": ["a", "b", "c"], "head_bias": True},
    {"kind": "text-embedder", "n_layers": 2, "vocab_size": VOCAB, "temperature": 0.5, "embedding_norm": False},
]

NORMS: list[Any] = ["layernorm", "rmsnorm", "dyt", {"kind": "layernorm", "bias": False}, "batchnorm", "none"]
PLACEMENTS = ["post", "pre", "sandwich", "parallel"]
LONGROPE = {"kind": "longrope", "short_factor": [1.0, 1.25, 1.5], "long_factor": [1.5, 2.0, 3.5], "original_max_seq_len": 4}
SCALINGS: list[dict[str, Any]] = [*({"kind": kind, "factor": 4.0} for kind in ("yarn", "ntk", "dynamic", "linear", "llama3")), LONGROPE]
"""Those that depend on the length are the same up to four tokens; ``fitting`` cuts the lists of LongRoPE to the width of a head."""

SLOPED = {"kind": "yarn", "factor": 2.0, "truncate": False}
POSITIONS: list[Any] = [
    *("sinusoidal", "learned", "rotary", "alibi", "none"),
    *({"kind": "rotary", "rope_scaling": scaling, "partial_rotary_factor": 1.0 - 0.5 * (i == 0)} for i, scaling in enumerate(SCALINGS)),
    {"kind": "rotary", "rope_theta": [100.0, 10000.0], "rope_scaling": [*reversed(SCALINGS), SLOPED, "none"]},
    {"kind": "relative", "n_buckets": 6, "max_distance": 5},
]
PATTERNS: list[Any] = [
    *("full", "window", "block-local", "logsparse"),
    {"kind": "window", "size": 2},
    {"kind": "strided", "stride": 2},
    {"kind": "all", "patterns": [{"kind": "window", "size": 4}, {"kind": "strided", "stride": 2}]},
    {"kind": "any", "patterns": [{"kind": "block-local", "size": 2}, {"kind": "summary", "stride": 3, "columns": 1}]},
    {"kind": "any", "patterns": [{"kind": "random", "size": 1}, {"kind": "global"}, {"kind": "window", "size": 1}]},
    {"kind": "any", "patterns": [{"kind": "window", "size": 2}, "prefix"]},
    [{"kind": "not", "patterns": {"kind": "strided", "stride": 2}}, "full"],
    [{"kind": "window", "size": 2}, {"kind": "logsparse", "window": 1}, "full"],
]
"""For texts of five tokens; none so narrow that a token attends to itself alone, since queries and keys would have no gradient."""

ATTENTION: dict[str, list[Any]] = {
    "pattern": PATTERNS,
    "qkv_bias": [True, False],
    "output_projection": [True, True, True, False],
    "output_bias": [True, True, False],
    "qk_norm": ["none", "rmsnorm", "layernorm", "dyt"],
    "softcap": ["none", 1.5],
    "sinks": [False, True, False],
    "value_residual": ["none", "none", "learned", {"kind": "fixed", "lambda_1": 0.7, "lambda_2": -0.4}],
}
LOOKING_BACK = [
    "linear",
    "performer",
    {"kind": "linear", "feature_map": "relu"},
    {"kind": "performer", "n_features": 5, "orthogonal": False},
]
APPROXIMATIONS = [
    *LOOKING_BACK,
    *({"kind": "linformer", "rank": rank} for rank in (2, 7)),
    *({"kind": "nystrom", "n_landmarks": n} for n in (2, 8)),
]
"""Approximations for decoders, and all; for texts of five tokens, some with more landmarks than tokens and some with fewer."""

NETWORKS = ["relu", "gelu", "gelu-tanh", "silu", "squared-relu", "glu", "reglu", "geglu", "swiglu"]
NETWORK = st.tuples(st.sampled_from(NETWORKS), st.booleans()).map(lambda drawn: {"kind": drawn[0], "bias": drawn[1]})
EXPERTS: dict[str, list[Any]] = {
    "n_experts": [2, 3],
    "top_k": [2, 1],
    "norm_topk_prob": [True, False, False],
    "n_shared_experts": [0, 2],
    "d_expert": ["none", 5],
    "scoring_func": ["softmax", "sigmoid"],
    "load_balancing": ["aux-loss", "bias", "none"],
    "capacity_factor": ["none", 3.0],  # enough for all tokens: what is dropped is tested with the layer
}


def mixture(fields: dict[str, Any]) -> dict[str, Any]:
    """Configure a mixture of experts; the gate of a single expert is not normalized."""
    return {"kind": "moe"} | fields | {"norm_topk_prob": fields["norm_topk_prob"] and fields["top_k"] > 1}


def each(lists: dict[str, list[Any]]) -> dict[str, st.SearchStrategy[Any]]:
    """Draw one value of every list."""
    return {name: st.sampled_from(values) for name, values in lists.items()}


MIXTURE = st.fixed_dictionaries({"expert": NETWORK, **each(EXPERTS)}).map(mixture)
FEED_FORWARD = st.one_of(NETWORK, MIXTURE)

SOURCE_ATTENTION: list[Any] = [
    "none",
    "additive",
    {"kind": "additive", "d_attention": 5},
    *({"kind": "luong", "score": score, "input_feeding": fed} for score in ("dot", "general", "concat") for fed in (True, False)),
    {"kind": "luong", "score": "concat", "d_attention": 5},
]
WIDTHS: list[dict[str, Any]] = [
    {"tie_embeddings": "all"},
    {"tie_embeddings": "decoder"},
    {"tie_embeddings": "inputs"},
    {"tie_embeddings": "none"},
    {"tie_embeddings": "none", "d_embedding": 7},
]
"""Position encodings whose tables may be shared, and others."""

DEPTHS: list[Any] = ["full", *({"kind": "mod", "capacity": 0.5, "every": every} for every in (1, 2))]


def _cut(scaling: Any, n_pairs: int) -> Any:
    """Cut the lists of LongRoPE to one number per pair of dimensions."""
    if scaling == "none" or scaling["kind"] != "longrope":
        return scaling
    return scaling | {name: scaling[name][:n_pairs] for name in ("short_factor", "long_factor")}


def fitting(fields: dict[str, Any]) -> dict[str, Any]:
    """Remove what the schema rejects together with a mixture of depths, without an output projection, or with narrower heads."""
    if "d_head" in fields and isinstance(fields["position"], dict) and "rope_scaling" in fields["position"]:
        scaling, n_pairs = fields["position"]["rope_scaling"], fields["d_head"] // 2
        scaling = [_cut(each, n_pairs) for each in scaling] if isinstance(scaling, list) else _cut(scaling, n_pairs)
        fields = fields | {"position": fields["position"] | {"rope_scaling": scaling}}
    if not fields["attention"].get("output_projection", True) and "d_value" in fields:
        fields = fields | {"d_value": 2}
    if fields["depth"] == "full":
        return fields
    every = fields["depth"]["every"] if fields["attention"]["value_residual"] == "none" else 2
    experts = fields["feed_forward"]["kind"] == "moe"
    return fields | {"depth": {**fields["depth"], "every": every}, **({"feed_forward": "swiglu"} if experts else {})}


SIZES = {"d_model": 12, "n_heads": 6, "max_seq_len": 16}
BRICKS: dict[str, list[Any]] = {
    "n_kv_heads": [6, 3, 1],
    "d_head": [4, 5, 6],
    "d_value": [2, 3],
    "d_ff": [8, 13],
    "norm": NORMS,
    "norm_placement": PLACEMENTS,
    "position": POSITIONS,
    "depth": DEPTHS,
    "scale_embeddings": [True, False],
    "dropout": [0.0, 0.2],
    "attention_dropout": [0.0, 0.1],
    "feed_forward_dropout": [0.0, 0.0, 0.1],
}
"""Fields that all families share, without attention and feed-forward."""


def components() -> st.SearchStrategy[dict[str, Any]]:
    """Draw the fields that all families share."""
    lists = {"attention": st.fixed_dictionaries(each(ATTENTION)), "feed_forward": FEED_FORWARD}
    return st.fixed_dictionaries(each(BRICKS) | lists).map(lambda drawn: fitting(SIZES | drawn))


def turns(lists: dict[str, list[Any]]) -> Iterator[dict[str, Any]]:
    """Yield the i-th value of every list for i = 0, 1, ...; shorter lists are cycled."""
    return (dict(zip(lists, values, strict=True)) for values in zip(*map(cycle, lists.values()), strict=True))


def set_components(lists: dict[str, list[Any]], attention: dict[str, list[Any]], n: int) -> list[dict[str, Any]]:
    """Return ``n`` combinations: the i-th has the i-th value of every list; every third has a mixture of experts."""
    experts = (
        mixture({"expert": {"kind": kind}, **fields}) for kind, fields in zip(cycle(reversed(NETWORKS)), turns(EXPERTS), strict=False)
    )
    plain = ({"kind": kind} for kind in cycle(NETWORKS))
    networks = (next(experts if i % 3 == 0 else plain) for i in range(n))
    rows = zip(turns(lists), turns(attention), networks, strict=False)
    return [fitting(fields | {"attention": attention, "feed_forward": network}) for fields, attention, network in rows]


def set_texts(families: list[dict[str, Any]], approximations: list[Any]) -> list[dict[str, Any]]:
    """Combine components and families so that every value of every list occurs, then each approximation with some of them."""
    rows = [SIZES | fields | family for fields, family in zip(set_components(BRICKS, ATTENTION, 13), cycle(families), strict=False)]
    return rows + [with_approximation(fields, kind) for fields, kind in zip(cycle(rows), approximations, strict=False)]


def recurrent(*kinds: str) -> st.SearchStrategy[dict[str, Any]]:
    """Draw a recurrent model: an encoder-decoder or a language model, unless a kind is given."""
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
            "attention": st.sampled_from(SOURCE_ATTENTION),
        }
        | shared
    )
    text = st.fixed_dictionaries(
        {"kind": st.just("recurrent-decoder"), "vocab_size": st.just(VOCAB), "n_layers": st.sampled_from([1, 2, 3])} | shared
    )
    tied = st.tuples(pairs, st.sampled_from(WIDTHS)) | st.tuples(
        text, st.sampled_from([{**each, "tie_embeddings": each["tie_embeddings"] in ("all", "decoder")} for each in WIDTHS])
    )
    return tied.map(lambda drawn: drawn[0] | drawn[1]).filter(lambda fields: not kinds or fields["kind"] in kinds)


def combinations(families: list[dict[str, Any]] = FAMILIES) -> st.SearchStrategy[dict[str, Any]]:
    """Draw a family and its components, a quarter of them with approximate attention."""
    exact = st.tuples(components(), st.sampled_from(families)).map(lambda drawn: drawn[0] | drawn[1])
    return exact | exact | exact | exact.flatmap(approximated)


def approximated(fields: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Draw an approximation to replace the exact attention of a combination."""
    kinds = LOOKING_BACK if fields["kind"] in ("seq2seq", "decoder") else APPROXIMATIONS
    return st.sampled_from(kinds).map(lambda kind: with_approximation(fields, kind))


def with_approximation(fields: dict[str, Any], kind: Any) -> dict[str, Any]:
    """Replace the exact attention of a combination by an approximation, and replace what is incompatible with it."""
    biased = (fields["position"] if isinstance(fields["position"], str) else fields["position"]["kind"]) in ("alibi", "relative")
    others: dict[str, Any] = {"depth": "full", "attention_dropout": 0.0} | ({"position": "rotary"} if biased else {})
    return fields | others | ({"mask": "causal"} if "mask" in fields else {}) | {"attention": approximating(fields["attention"], kind)}


def approximating(attention: dict[str, Any], kind: Any) -> dict[str, Any]:
    """Add an approximation to a drawn attention, and remove what is incompatible with it."""
    return {name: attention[name] for name in ("qkv_bias", "output_projection", "output_bias", "qk_norm", "value_residual")} | {
        "approximation": kind
    }


CELLS = ["rnn", "lstm", "gru"]
SET_RECURRENT: list[dict[str, Any]] = [
    {"kind": "recurrent-seq2seq", "source_vocab_size": VOCAB, "target_vocab_size": VOCAB, "max_seq_len": 16, "d_model": 12} | fields | width
    for fields, width in zip(
        islice(
            turns(
                {
                    "attention": SOURCE_ATTENTION,
                    "cell": CELLS,
                    "n_encoder_layers": [1, 2, 3],
                    "n_decoder_layers": [2, 1],
                    "bidirectional": [True, False],
                }
            ),
            10,
        ),
        cycle(WIDTHS),
        strict=False,
    )
] + [
    {
        "kind": "recurrent-decoder",
        "vocab_size": VOCAB,
        "max_seq_len": 16,
        "d_model": 12,
        "n_layers": 2,
        "cell": cell,
        "tie_embeddings": cell != "gru",
    }
    for cell in CELLS
]
BASIC: dict[str, Any] = SIZES | {"d_ff": 8, "depth": "full", "feed_forward": {"kind": "geglu-tanh"}, "attention": {}}
FURTHER_WRITERS: list[dict[str, Any]] = [
    BASIC | FAMILIES[1] | {"logit_scale": 0.3, "logit_softcap": 1.5},
    BASIC | FAMILIES[3] | {"logit_softcap": 0.7, "position": "rotary"},
    BASIC | FAMILIES[0] | {"embedding_norm": True},
    BASIC | FAMILIES[4] | {"embedding_norm": True, "position": "learned"},
    *(BASIC | FAMILIES[n] | {"norm_placement": "parallel-separate", "position": "rotary"} for n in (2, 3)),
    BASIC | FAMILIES[1] | {"n_kv_heads": 3, "decoder_n_heads": 2, "decoder_d_ff": 5, "position": "rotary"},
    BASIC
    | FAMILIES[0]
    | {"decoder_n_heads": 4, "decoder_d_ff": 11, "position": "relative", "feed_forward": {"kind": "moe", "n_experts": 3}},
    BASIC
    | FAMILIES[2]
    | {"position": "rotary", "norm_placement": "parallel-separate", "depth": {"kind": "mod", "capacity": 0.5, "every": 2}},
    SET_RECURRENT[-1] | {"logit_scale": 1.7, "logit_softcap": 0.9},
]
FURTHER_ENCODERS: list[dict[str, Any]] = [
    BASIC | ENCODERS[0] | {"logit_scale": 0.3, "logit_softcap": 1.5},
    BASIC | ENCODERS[2] | {"norm_placement": "parallel-separate"},
    BASIC | ENCODERS[2] | {"pooler_activation": "relu", "pooler_input_dropout": 0.1},
    BASIC | ENCODERS[3] | {"pooler_activation": "gelu"},
    BASIC | ENCODERS[2] | {"pooler": False},
    *(BASIC | ENCODERS[1] | {"head_activation": kind, "n_token_types": 2} for kind in ("gelu-tanh", "relu", "silu")),
    BASIC | ENCODERS[2] | {"n_token_types": 3, "position": "rotary"},
]
"""Options that exist beside the components."""

SET_WRITERS = set_texts(FAMILIES, LOOKING_BACK) + SET_RECURRENT
SET_ENCODERS = set_texts(ENCODERS, APPROXIMATIONS)
SET_TEXTS = SET_WRITERS[:7] + SET_ENCODERS[7:] + SET_RECURRENT + FURTHER_WRITERS + FURTHER_ENCODERS
SET_WRITERS, SET_ENCODERS = SET_WRITERS + FURTHER_WRITERS, SET_ENCODERS + FURTHER_ENCODERS
"""Fixed combinations that cover every component: of families that generate text, of the others, and a smaller set of all."""

Test = TypeVar("Test", bound=Callable[..., Any])


def also(combined: Iterable[dict[str, Any]], *more: Any) -> Callable[[Test], Test]:
    """Test a property of random combinations on these too."""

    def with_examples(test: Test) -> Test:
        for fields in combined:
            test = example(fields, *more)(test)
        return test

    return with_examples


WITHIN = {"patterns": "pattern", "expert": "feed_forward"}
"""Fields with the same components as another field; a component need only occur in one."""


def choices(*kinds: type[Schema]) -> set[tuple[str, Any]]:
    """List all options of schemas and nested schemas: kinds of components, literals, booleans."""
    found: set[tuple[str, Any]] = set()
    waiting, known = list(kinds), set(kinds)
    while waiting:
        for field_name, field in waiting.pop().model_fields.items():
            name = WITHIN.get(field_name, field_name)
            parts = [part for part in allowed_schemas(field) + list_item_schemas(field) if issubclass(part, ComponentConfig)]
            found |= {(name, kind) for part in parts for kind in get_args(part.model_fields["kind"].annotation)}
            for member in allowed_types(field):
                words = (True, False) if member is bool else get_args(member) if get_origin(member) is Literal and name != "kind" else ()
                found |= {(name, word) for word in words}
            waiting += [part for part in parts if part not in known]
            known |= set(parts)
    return found


def chosen(config: Schema) -> set[tuple[str, Any]]:
    """List the options chosen in a configuration."""
    found: set[tuple[str, Any]] = set()
    for field_name, value in config:
        name = WITHIN.get(field_name, field_name)
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, ComponentConfig):
                found |= {(name, part.kind)} | chosen(part)  # type: ignore[attr-defined]
            elif isinstance(part, str | bool | int):
                found.add((name, part))
    return found


def described(fields: dict[str, Any]) -> TextModelConfig:
    """Validate a combination against the schema."""
    config: TextModelConfig = TypeAdapter(AnyModel).validate_python(fields)
    return config


def batch_for(config: TextModelConfig, target: PaddedSequences = TARGET, source: PaddedSequences = SOURCE) -> Batch:
    """Build a batch for the family."""
    match config:
        case EncoderDecoderConfig():
            return TranslationBatch(source, target, LABELS, (0, 1))
        case MaskedLMConfig() | TokenTaggerConfig():
            labels = source.tokens if isinstance(config, MaskedLMConfig) else source.tokens % len(config.classes)
            return MaskedBatch(source, labels, source.tokens > 4, (0, 1))
        case TextEmbedderConfig():
            return ContrastiveBatch(source, target, (0, 1))
        case TextClassifierConfig():
            return LabeledTextBatch(source, torch.tensor([2, 0]), (0, 1))
        case _:
            return LanguageBatch(target, LABELS, (0, 1))


def passing_first(fields: dict[str, Any]) -> dict[str, Any]:
    """Make the router select every token, so that each attends to all that the family's mask allows."""
    return fields if fields["depth"] == "full" else fields | {"depth": fields["depth"] | {"every": 2}}


def prompt_for(config: TextModelConfig) -> PaddedSequences:
    """Return the input of ``encode``: the source, or the first token of a text, which the first step reads."""
    return SOURCE if isinstance(config, EncoderDecoderConfig) else PaddedSequences.pad(TARGET.tokens[:, :1].tolist())


def noisy(side: PaddedSequences, token: int) -> PaddedSequences:
    """Replace the token ids at padding."""
    return with_tokens(side, torch.where(side.segments > 0, side.tokens, token))


def with_tokens(side: PaddedSequences, tokens: Tensor) -> PaddedSequences:
    """Replace all tokens."""
    return replace(side, tokens=tokens)
