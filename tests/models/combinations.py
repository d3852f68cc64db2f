"""Random combinations of bricks, for property tests of every family."""

from typing import Any

from hypothesis import strategies as st

NORMS = st.sampled_from(["layernorm", "rmsnorm", "dyt", {"kind": "layernorm", "bias": False}])
POSITIONS = st.sampled_from(
    [
        *("sinusoidal", "learned", "rotary", "alibi", "relative", "none"),
        {"kind": "rotary", "share": 0.5},
        {"kind": "rotary", "scaling": "yarn", "factor": 4.0},
        {"kind": "relative", "n_buckets": 6, "max_distance": 5},
    ]
)
ATTENTION = st.fixed_dictionaries(
    {
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
