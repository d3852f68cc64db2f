"""The items that the hand calculation of each family must show, in order."""

import re
from typing import Any

import pytest
import torch

import transom
from tests.inspection.test_explain import check, model_and_batch
from tests.models.combinations import ENCODERS, FAMILIES, SIZES, SOURCE_ATTENTION, VOCAB
from tests.models.test_vision import PLAIN, STEMS
from tests.tiers import every
from transom.config.adapter import LoraConfig
from transom.layers.lora import LoraLinear
from transom.models.apply_lora import apply_lora

TEXT = (r"tokens: 0 \S+ \(id \d+\), 1", r"E_\d, (?:token embedding: )?row \d+ of the embedding table")
POSITIONS = (r"P_\d, position encoding of position \d", r"X = E \+ P", r"X_\d, residual stream before the first block")
NORM = (r"mu = sum_i x_i / d", r"sigma\^2 = sum_i \(x_i - mu\)\^2 / d", r"\(x - mu\) / sqrt\(sigma\^2 \+ eps\)", r"gamma x_hat \+ beta")
PROJECTIONS = (r"q = x W_Q", r"k = x W_K", r"v = x W_V")
SCORES = (r"dot product of query and key: q \. k", r"S = q \. k / sqrt\(d_k\)")
WEIGHTS = (r"mask", r"exponentials: e\^", r"sum of the exponentials", r"weights: A = e\^S / sum")
VALUES = (
    r"weighted values: z = sum_j A_j v_j",
    r"checked: weights x V equals the kernel's head output",
    r"concat, outputs of the \d heads",
    r"o = concat W_O",
)
RESIDUAL = (r"x \+ sub-layer\(norm\(x\)\)",)
PLAIN_NETWORK = (r"pre-activation: x W_1", r"activation: max\(0, x\)", r"output: hidden W_2")
GATED = (r"pre-activation of the gate: x W_g", r"gate: SiLU", r"hidden = gate \* up", r"output: hidden W_2")
OUTPUT = (r"z = h W_U", *(rf"robabilities at temperature {t}\b" for t in ("0.5", "1", "2")), r"= 0\.\d+\n$")
ATTENTION = (*PROJECTIONS, *SCORES, *WEIGHTS, *VALUES)
BLOCK = (*NORM, *ATTENTION, *RESIDUAL, *NORM, *PLAIN_NETWORK, *RESIDUAL)
ORDINARY: dict[str, Any] = SIZES | {"d_ff": 8, "norm": "layernorm", "norm_placement": "pre", "position": "learned", "feed_forward": "relu"}
GPT = ORDINARY | FAMILIES[4]
NO_POSITION = (r"P: no position encoding is added",)


def attention(**fields: Any) -> dict[str, Any]:
    return GPT | {"attention": fields}


def implied(*items: str) -> tuple[str, ...]:
    """Return the items of an approximation in place of those of the softmax."""
    return (*TEXT, *POSITIONS, *NORM, *PROJECTIONS, *items, *VALUES, *RESIDUAL)


PICTURE = PLAIN | {"norm": "layernorm", "norm_placement": "pre", "position": "learned", "patch_size": 2, "feed_forward": "relu"}
CLS = {"classes": ["a", "b", "c"], "n_layers": 2, "vocab_size": VOCAB}
RECURRENT = {"kind": "recurrent-seq2seq", "source_vocab_size": VOCAB, "target_vocab_size": VOCAB, "max_seq_len": 16, "d_model": 12}
CONVOLUTION = (
    r"\(pixel - mean\) / std",
    r"convolution: sum over \d+ channels and 3 x 3 values of x w",
    r"mu = sum_i x_i / n",
    r"sigma\^2 = sum_i \(x_i - mu\)\^2 / n",
    r"gamma x_hat \+ beta",
    r"relu \d \(\d, \d\) = max\(0, ",
)
ITEMS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "decoder": (GPT, (*TEXT, *POSITIONS, *BLOCK, r"inal norm of token", *NORM, *OUTPUT)),
    "sinusoidal": (GPT | {"position": "sinusoidal"}, (*TEXT, r"(?:sin|cos)\(i 10000\^", *POSITIONS, *BLOCK, *OUTPUT)),
    "rotary": (
        GPT | {"position": "rotary"},
        (*TEXT, *NO_POSITION, r"q = x W_Q", r"cos theta_0", r"sin theta_0", r"\(rotated\)", *SCORES, *OUTPUT),
    ),
    "a base per layer": (
        GPT | {"position": {"kind": "rotary", "rope_theta": [50.0, 700.0]}},
        (*TEXT, *NO_POSITION, r"q = x W_Q", r"theta = 3 \* 700\^", r"cos theta_0 = cos\(3\)", r"\(rotated\)", *SCORES, *OUTPUT),
    ),
    "a scaling per layer": (
        GPT | {"position": {"kind": "rotary", "rope_scaling": ["none", {"kind": "dynamic", "factor": 8.0}]}},
        (*TEXT, *NO_POSITION, r"q = x W_Q", r"whose frequencies are scaled", r"\(rotated\)", *SCORES, *OUTPUT),
    ),
    "alibi": (GPT | {"position": "alibi"}, (*TEXT, *NO_POSITION, *SCORES, r"position bias: S \+ bias", *WEIGHTS, *OUTPUT)),
    "relative": (GPT | {"position": "relative"}, (*TEXT, *NO_POSITION, *SCORES, r"position bias: S \+ bias", *WEIGHTS, *OUTPUT)),
    "qk norm": (attention(qk_norm="layernorm"), (r"q = x W_Q", *NORM, r"k = x W_K", *NORM, r"v = x W_V", *SCORES, *OUTPUT)),
    "softcap": (attention(softcap=1.5), (*SCORES, r"softcap: c tanh\(S / c\)", *WEIGHTS, *OUTPUT)),
    "sinks": (attention(sinks=True), (*SCORES, r"exponentials: e\^S", r"learned sink", r"sum of the exponentials", *VALUES, *OUTPUT)),
    "shared keys": (GPT | {"n_kv_heads": 3}, (r"query heads 2, 3 share key and value head 1", *ATTENTION, *OUTPUT)),
    "window": (
        attention(pattern={"kind": "window", "size": 2}),
        (*SCORES, r"mask: minus infinity hides a key", r"-inf", *WEIGHTS[1:], *OUTPUT),
    ),
    "value residual": (GPT | {"attention": {"value_residual": "learned"}}, (r"v' = lambda_1 v of block 0 \+ lambda_2 v", *SCORES, *OUTPUT)),
    "no W_O": (
        GPT | {"d_value": 2, "attention": {"output_projection": False}},
        (r"weighted values", r"the layer has no W_O", *RESIDUAL, *OUTPUT),
    ),
    "gated": (GPT | {"feed_forward": "swiglu"}, (*ATTENTION, *GATED, *RESIDUAL, *OUTPUT)),
    "experts": (
        GPT | {"feed_forward": {"kind": "moe", "n_experts": 3, "top_k": 2, "n_shared_experts": 1, "expert": "swiglu"}},
        (
            *ATTENTION,
            r"router: x W_r",
            r"probability of each expert",
            r"chosen experts",
            *GATED,
            r"shared expert",
            r"sum_i g_i E_i\(x\)",
            *OUTPUT,
        ),
    ),
    "depth": (GPT | {"depth": {"kind": "mod", "every": 1}}, (*TEXT, r"score: r = w x", r"the score is (?:not )?above 0", r"z = h W_U")),
    "parallel": (GPT | {"norm_placement": "parallel"}, (*NORM, *ATTENTION, *PLAIN_NETWORK, r"x \+ outputs of all sub-layers", *OUTPUT)),
    "parallel-separate": (
        GPT | {"norm_placement": "parallel-separate"},
        (*NORM, *ATTENTION, *NORM, *PLAIN_NETWORK, r"x \+ outputs of all sub-layers", *OUTPUT),
    ),
    "post": (GPT | {"norm_placement": "post"}, (*ATTENTION, r"x \+ sub-layer\(x\)", *NORM, *PLAIN_NETWORK, *NORM, *OUTPUT)),
    "sandwich": (
        GPT | {"norm_placement": "sandwich"},
        (*NORM, *ATTENTION, *NORM, *RESIDUAL, *NORM, *PLAIN_NETWORK, *NORM, *RESIDUAL, *OUTPUT),
    ),
    "rms norm": (GPT | {"norm": "rmsnorm"}, (r"sum_i x_i\^2 / d", r"x / sqrt\(mean square \+ eps\)", *ATTENTION, *OUTPUT)),
    "dynamic tanh": (GPT | {"norm": "dyt"}, (r"tanh\(alpha x\)", *ATTENTION, *OUTPUT)),
    "no norm": (GPT | {"norm": "none"}, (r"there is no norm here", *ATTENTION, *OUTPUT)),
    "tied": (ORDINARY | FAMILIES[3], (*BLOCK, r"z = h W_U", r"W_U is tied", *OUTPUT[1:])),
    "adapter": (GPT, (r"q = x W_Q.* where W includes the low-rank update", *SCORES, *OUTPUT)),
    "translator": (
        ORDINARY | FAMILIES[2],
        (
            *TEXT,
            *POSITIONS,
            *BLOCK,
            *NORM,
            *TEXT,
            *POSITIONS,
            *NORM,
            *ATTENTION,
            *RESIDUAL,
            r"cross-attention",
            *NORM,
            r"output of the encoder",
            *SCORES,
            *WEIGHTS,
            *VALUES,
            *RESIDUAL,
            *NORM,
            *PLAIN_NETWORK,
            *RESIDUAL,
            *OUTPUT,
        ),
    ),
    "encoder": (ORDINARY | ENCODERS[0], (*TEXT, *POSITIONS, *BLOCK, r"ransform of token", r"GELU", *NORM, *OUTPUT)),
    "classifier": (
        ORDINARY | ENCODERS[2],
        (*TEXT, *POSITIONS, *BLOCK, r"first token stands for the whole", r"pooled W", r"h = tanh\(pre\)", *OUTPUT),
    ),
    "mean classifier": (ORDINARY | ENCODERS[3], (*BLOCK, r"mean over the tokens: sum_t h_t / n", r"h = tanh\(pre\)", *OUTPUT)),
    "tagger": (ORDINARY | ENCODERS[4], (*TEXT, *POSITIONS, *BLOCK, *NORM, *OUTPUT)),
    "embedder": (
        ORDINARY | ENCODERS[5],
        (*BLOCK, r"mean over the tokens", r"sqrt\(sum_i x_i\^2\)", r"unit vector", r"z = u \. v / t", *OUTPUT[1:]),
    ),
    "picture": (
        PICTURE | {"pooling": "mean"},
        (r"cut into \d x \d patches", r"\(pixel - mean\)", r"x_p E", r"X = x_p E \+ P", *BLOCK, r"mean over", *OUTPUT),
    ),
    "stem": (
        PICTURE | {"pooling": "mean", "stem": STEMS[2]},
        (*CONVOLUTION, r"channel attention", r"3 x 3 max pooling", *CONVOLUTION[1:], r"x_p E", *BLOCK, *OUTPUT),
    ),
    "sound": (
        PICTURE | {"channels": 1, "pooling": "cls"},
        (r"cut into", r"X = x_p E \+ P", *BLOCK, r"first token stands for the whole", *OUTPUT),
    ),
    "convolutional": (
        {"kind": "convolutional", "channels": 1, "stem": STEMS[3]},
        (
            *CONVOLUTION,
            r"channel attention",
            r"spatial attention",
            r"maximum of the window",
            r"mean over rows and columns",
            r"h = max\(0, pre\)",
            *OUTPUT,
        ),
    ),
    "linear": (
        attention(approximation="linear"),
        implied(
            r"phi\(x\) = elu\(x\) \+ 1", r"S = sum_j phi\(k_j\) v_j", r"normalizer: s = sum_j", r"numerator / denominator", r"weights: A ="
        ),
    ),
    "performer": (
        attention(approximation="performer"),
        implied(r"x' = x / d_k", r"w \. x' - ", r"e\^\(log phi", r"S = sum_j", r"numerator / denominator", r"weights: A ="),
    ),
    "linformer": (
        ORDINARY | ENCODERS[2] | {"attention": {"approximation": {"kind": "linformer", "rank": 2}}},
        implied(
            r"k'_r = sum_j E_rj k_j", r"q \. k'", r"/ sqrt\(d_k\)", r"sum of the exponentials", r"v'_r = sum_j F_rj v_j", r"sum_r p_r F_rj"
        ),
    ),
    "nystrom": (
        ORDINARY | ENCODERS[2] | {"attention": {"approximation": {"kind": "nystrom", "n_landmarks": 2}}},
        implied(
            r"landmark \d: the mean of the keys",
            r"q \. k'",
            r"sum of the exponentials",
            r"not written out: P is shown as given",
            r"g = p P",
            r"sum_l g_l H_lj",
        ),
    ),
    **{
        f"recurrent {cell}": (
            {"kind": "recurrent-decoder", "vocab_size": VOCAB, "max_seq_len": 16, "d_model": 12, "n_layers": 2, "cell": cell},
            (*TEXT, r"ayer 0, token \d", r"x W.* \+ h_before U", formula, *OUTPUT),
        )
        for cell, formula in (("rnn", r"h = tanh\(pre\)"), ("lstm", r"c = f c_before \+ i g"), ("gru", r"\(1 - z\) n"))
    },
    **{
        f"recurrent translator {number}": (
            RECURRENT | {"attention": source, "cell": "gru"},
            (
                *TEXT,
                r"reset gate",
                *TEXT,
                *((r"exponentials: e\^", r"weights: A = e\^S / sum", r"context vector") if source != "none" else ()),
                *OUTPUT,
            ),
        )
        for number, source in enumerate(SOURCE_ATTENTION[:4])
    },
}
"""Fields of a model, and patterns that its explanation must match one after another, by the name of the family or component."""


@pytest.mark.parametrize("name", every(3, ITEMS))
def test_the_items_of_a_family_are_shown_in_order(name: str) -> None:
    fields, items = ITEMS[name]
    model, batch = model_and_batch(fields)
    if name == "adapter":
        apply_lora(model, LoraConfig(rank=2, target_modules=("attn.q",)))
        for module in model.modules():
            if isinstance(module, LoraLinear):
                torch.nn.init.normal_(module.lora_b)
    text = fields["kind"] not in ("vision-transformer", "convolutional")
    heads = {} if "recurrent" in fields["kind"] or fields["kind"] == "convolutional" else {"head": 2}
    block = {"block": 1} if name == "value residual" or name.endswith("per layer") else {}
    explanation = transom.explain(model, batch, **heads, **block, **({"query": 3} if text or name == "sound" else {}))
    check(explanation)
    written, at = explanation.text(), 0
    for item in items:
        found = re.compile(item).search(written, at)
        assert found, f"{name}: no {item!r} after {written[:at][-300:]!r}"
        at = found.end()
