"""Schemas of the components of Transformer models: one class per component, selected by ``kind``.

docs/components.md is generated from their docstrings.
"""

import math
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field, field_validator, model_validator

from transom.config.approximations import AnyApproximation, NoApproximationConfig
from transom.config.component_registry import register_component
from transom.config.patterns import AnyPattern, FullPatternConfig
from transom.config.rope_scaling import AnyRopeScaling, NoScalingConfig, RopeScalingConfig, block_scalings
from transom.config.schema import ComponentConfig, Slot
from transom.files.limits import MAX_LAYERS

AnyNorm = Annotated[ComponentConfig, Slot("norm")]
AnyTokenNorm = Annotated[ComponentConfig, Slot("qk_norm")]
"""A norm that normalizes each vector by itself, without statistics over tokens."""


@register_component("norm", "qk_norm")
class LayerNormConfig(ComponentConfig):
    """Layer normalization (Ba et al. 2016): gamma * (x - mean) / sqrt(variance + eps) + beta.

    Cost and use: Two passes over a token's vector; the default, and the norm of the Transformer of 2017, GPT-2, BERT and ViT.
    """

    kind: Literal["layernorm"] = "layernorm"
    eps: float = Field(1e-5, gt=0, description="added to the variance before the square root")
    bias: bool = Field(True, description="the shift beta")


@register_component("norm", "qk_norm")
class RmsNormConfig(ComponentConfig):
    """Root-mean-square normalization (Zhang & Sennrich 2019): gamma * x / sqrt(mean(x^2) + eps).

    Cost and use: No mean and no shift, so slightly cheaper than layer norm at equal quality; Llama and most later models.
    """

    kind: Literal["rmsnorm"] = "rmsnorm"
    eps: float = Field(1e-6, gt=0, description="added to the mean square before the square root")


@register_component("norm", "qk_norm")
class DynamicTanhConfig(ComponentConfig):
    """Dynamic tanh, without statistics (Zhu et al. 2025, eq. 1): gamma * tanh(alpha * x) + beta, with one learned alpha.

    Cost and use: No sums over the vector; learns slowly if the initial alpha does not suit the depth. For experiments.
    """

    kind: Literal["dyt"] = "dyt"
    alpha: float = Field(0.5, gt=0, description="alpha before training")


@register_component("norm", "qk_norm")
class NoNormConfig(ComponentConfig):
    """No normalization: x.

    Cost and use: Free; deep stacks do not train with it at usual learning rates. For experiments.
    """

    kind: Literal["none"] = "none"


@register_component("norm")
class BatchNormConfig(ComponentConfig):
    """Batch normalization (Ioffe & Szegedy 2015): gamma * (x - mean) / sqrt(variance + eps) + beta, with statistics per dimension.

    Training uses the statistics of all tokens of a forward pass, without padding. Evaluation uses running statistics, which
    each step moves towards those of its batch by ``momentum``; they are saved with the weights.

    Cost and use: For comparison with layer norm, not for use on text. In training, the output for a token depends on later
    tokens and on other rows, so a decoder is causal in evaluation only, and statistics depend on the lengths of
    rows. Micro-batches (training.grad_accum_steps) are normalized separately, so their number changes the result; training.average
    averages the statistics too, and the run must have one process.
    """

    kind: Literal["batchnorm"] = "batchnorm"
    eps: float = Field(1e-5, gt=0, description="added to the variance before the square root")
    momentum: float = Field(0.1, gt=0, le=1, description="weight of a step's statistics in the running statistics")


class PositionConfig(ComponentConfig):
    """Base of position encodings."""

    BIASES: ClassVar[bool] = False
    """Whether positions are encoded by a bias on the attention scores."""

    COMPUTED: ClassVar[bool] = False
    """Whether positions are computed and have no learned parameters."""

    def rotary_dim(self, d_head: int) -> int:
        """Return the number of dimensions of a head that are rotated; 0 without rotary positions."""
        return 0


AnyPosition = Annotated[PositionConfig, Slot("position", PositionConfig)]
AnyPatchPosition = Annotated[PositionConfig, Slot("patch_position", PositionConfig)]
"""Position encoding of image patches."""


@register_component("position")
class SinusoidalConfig(PositionConfig):
    """Fixed sines and cosines added to the embeddings (Vaswani et al. 2017, section 3.5).

    P[i, 2k] = sin(i / base^(2k / d_model)), P[i, 2k + 1] = cos(i / base^(2k / d_model)).

    Cost and use: No parameters and almost no time; the default for translation, where lengths are as in training.
    """

    COMPUTED: ClassVar[bool] = True
    kind: Literal["sinusoidal"] = "sinusoidal"
    base: float = Field(10000.0, gt=1, description="the longest wavelength is just below 2 pi times this")


@register_component("position", "patch_position")
class LearnedPositionConfig(PositionConfig):
    """A learned vector per position, added to the embeddings (Gehring et al. 2017, section 3.1): h = E[x] + P[i].

    Cost and use: max_seq_len * d_model parameters; as good as sinusoids within the trained length and useless beyond. GPT-2, BERT.
    """

    kind: Literal["learned"] = "learned"


@register_component("patch_position")
class Sinusoidal2dConfig(PositionConfig):
    """2D sinusoids: one half of the vector encodes a patch's row and the other its column (He et al. 2022, MAE, section 3).

    Each half is the sinusoid of Vaswani et al. 2017 over d_model / 2 dimensions. A classification token has no position.

    Cost and use: No parameters, and defined for any grid of patches; about as good as learned positions, better on little data.
    """

    COMPUTED: ClassVar[bool] = True
    kind: Literal["sinusoidal-2d"] = "sinusoidal-2d"
    base: float = Field(10000.0, gt=1, description="the longest wavelength is just below 2 pi times this")


Base = Annotated[float, Field(gt=1)]


@register_component("position")
class RotaryConfig(PositionConfig):
    """Rotary position embedding: queries and keys rotated by an angle proportional to the position (Su et al. 2021, eq. 34).

    The pair (x_k, x_{k + d/2}) at position i is rotated by i / rope_theta^(2k / d), d the rotated width, so q_i . k_j depends on i - j.
    The halves are paired as in GPT-NeoX and Llama; the paper pairs adjacent dimensions. A list for rope_theta has one base per layer:
    block k uses base k mod n, as Gemma 3 and ModernBERT alternate a local and a global base.

    Cost and use: A few operations per query and key; the best choice for decoders; with rope_scaling usable beyond the trained length.
    """

    COMPUTED: ClassVar[bool] = True
    kind: Literal["rotary"] = "rotary"
    rope_theta: Base | tuple[Base, ...] = Field(
        10000.0, description="above 1; the longest wavelength is just below 2 pi times this; a list repeats over the blocks"
    )
    partial_rotary_factor: float = Field(1.0, gt=0, le=1, description="fraction of each head's width that is rotated (GPT-NeoX: 0.25)")
    rope_scaling: AnyRopeScaling = Field(
        NoScalingConfig(),
        description="extension to contexts longer than in training; a list repeats over the blocks. For linear, ntk and yarn, factor and"
        " original_max_seq_len may also be set in this table",
    )

    @model_validator(mode="before")
    @classmethod
    def _accept_fields_beside_the_scaling(cls, value: Any) -> Any:
        """Move factor and original_max_seq_len, which earlier versions had in this table, into the table of ``rope_scaling``."""
        if not isinstance(value, dict) or not value.keys() & {"factor", "original_max_seq_len"}:
            return value
        rest, scaling = dict(value), value.get("rope_scaling", "none")
        scaling = {"kind": scaling} if isinstance(scaling, str) else scaling
        kind = scaling.get("kind") if isinstance(scaling, dict) else None
        beside = {name: rest.pop(name) for name in ("factor", "original_max_seq_len") if name in rest}
        set_fields = {name: each for name, each in beside.items() if each not in (None, "none")}
        if kind == "none" and set_fields in ({}, {"factor": 1.0}):
            return rest
        if kind not in ("linear", "ntk", "yarn"):
            raise ValueError(f"{' and '.join(beside)}: expected in a table rope_scaling with a kind, found in position; move them there")
        return rest | {"rope_scaling": {**scaling, **set_fields}}

    @field_validator("rope_theta", "rope_scaling", mode="before")
    @classmethod
    def _a_list_is_a_cycle(cls, value: Any, info: Any) -> Any:
        if not isinstance(value, list | tuple):
            return value
        if not value:
            raise ValueError("expected at least one item, found an empty list")
        return tuple(value) if info.field_name == "rope_theta" else {"kind": "cycle", "scalings": value}

    @property
    def rotations(self) -> tuple[tuple[float, RopeScalingConfig], ...]:
        """Base and scaling of the first blocks of a stack; later blocks repeat them in order."""
        bases = self.rope_theta if isinstance(self.rope_theta, tuple) else (self.rope_theta,)
        scalings = block_scalings(self.rope_scaling)
        n = min(math.lcm(len(bases), len(scalings)), MAX_LAYERS)
        return tuple((bases[i % len(bases)], scalings[i % len(scalings)]) for i in range(n))

    def rotary_dim(self, d_head: int) -> int:
        """Return the number of rotated dimensions of a head, rounded down to an even number."""
        return int(d_head * self.partial_rotary_factor) // 2 * 2


@register_component("position")
class AlibiConfig(PositionConfig):
    """A penalty on distance, added to the scores (Press et al. 2022, section 3): -m_h |i - j|, slopes m_h = 2^(-8h / H) for head h of H.

    If H is not a power of two, slopes are interpolated between those of the next smaller and larger powers. In encoders, which the
    paper does not cover, the penalty is symmetric.

    Cost and use: A bias on every score, no parameters; quality degrades slowly beyond the trained length, and recall over long distances is
    weaker.
    """

    BIASES: ClassVar[bool] = True
    COMPUTED: ClassVar[bool] = True
    kind: Literal["alibi"] = "alibi"


@register_component("position")
class RelativePositionConfig(PositionConfig):
    """A learned bias per head and bucket of distances, added to the scores (Raffel et al. 2020, section 2.1): S_ij + b_h[bucket(j - i)].

    Half of the buckets hold one distance each, the others hold ranges that grow logarithmically up to ``max_distance``. Encoders have
    separate buckets for the two directions. All blocks of a stack share the table.

    Cost and use: A learned bias on every score, so slower attention in training; no limit of length. T5.
    """

    BIASES: ClassVar[bool] = True
    kind: Literal["relative"] = "relative"
    n_buckets: int = Field(32, ge=4, le=4096, description="buckets of distances")
    max_distance: int = Field(128, ge=2, description="distance from which on all distances share the last bucket")

    @model_validator(mode="after")
    def _distances_fit(self) -> "RelativePositionConfig":
        if self.max_distance <= self.n_buckets // 2:
            raise ValueError(
                f"expected max_distance above n_buckets / 2, found {self.max_distance} and {self.n_buckets}; change one of them"
            )
        return self


@register_component("position", "patch_position")
class NoPositionConfig(PositionConfig):
    """No positions (Kazemnejad et al. 2023): a decoder can still infer order from the causal mask, an encoder cannot.

    Cost and use: Free; for experiments with decoders, and for bags of words.
    """

    kind: Literal["none"] = "none"


AnyValueResidual = Annotated[ComponentConfig, Slot("value_residual")]


@register_component("value_residual")
class NoValueResidualConfig(ComponentConfig):
    """No mixing: each block uses its own values.

    Cost and use: The default.
    """

    kind: Literal["none"] = "none"


@register_component("value_residual")
class ValueResidualConfig(ComponentConfig):
    """ResFormer: values mixed with those of the first block (Zhou et al. 2024): V'_n = lambda_1 V_1 + lambda_2 V_n, n > 1.

    ``fixed`` keeps the two factors; ``learned`` trains two factors per block that start from them. V_1 are the projected values of the
    first block. The KV cache holds the mixed values. Cross-attention is unchanged.

    Cost and use: Two multiplications per value, and a KV cache of the same size; for deep stacks, whose last blocks otherwise retain little
    of the input tokens.
    """

    kind: Literal["fixed", "learned"] = "learned"
    lambda_1: float = Field(0.5, description="factor of the first block's values")
    lambda_2: float = Field(0.5, description="factor of the block's own values")


AnyScore = Annotated[ComponentConfig, Slot("score")]


@register_component("score")
class ScaledDotProductConfig(ComponentConfig):
    """S = Q K^T / sqrt(d_k) (Vaswani et al. 2017, eq. 1).

    Cost and use: The default, and the only score with fast kernels; others come from plugins and are computed by the reference.
    """

    kind: Literal["scaled-dot"] = "scaled-dot"


class MultiHeadAttentionConfig(ComponentConfig):
    """Scaled dot-product attention in several heads (Vaswani et al. 2017, section 3.2).

    softmax(Q K^T / sqrt(d_k)) V per head; with fewer key-value heads than query heads (``n_kv_heads``), grouped-query attention (Ainslie et
    al. 2023); with one, multi-query attention (Shazeer 2019).

    Cost and use: Time and memory of scores grow with the square of the length. Fewer key-value heads shrink the cache in proportion, at
    little loss of quality; qk_norm and softcap stabilize large models; sinks let a head attend to nothing.
    """

    kind: Literal["multihead"] = "multihead"
    qkv_bias: bool = Field(True, description="biases on W_Q, W_K and W_V")
    output_projection: bool = Field(True, description="W_O over the concatenated heads; without it, n_heads * d_value must equal d_model")
    output_bias: bool = Field(True, description="a bias on W_O")
    qk_norm: AnyTokenNorm = Field(
        NoNormConfig(),
        description="norm of each head's queries and keys, before rotary positions (Dehghani et al. 2023, after Henry et al. 2020)",
    )
    pattern: AnyPattern = Field(FullPatternConfig(), description="sparsity pattern of self-attention, within the model family's own mask")
    score: AnyScore = Field(ScaledDotProductConfig(), description="score of query and key, before softcap, bias and mask")
    softcap: float | None = Field(
        None,
        gt=0,
        description="c of c * tanh(Q K^T / (c sqrt(d_k))), before any bias (Gemma Team 2024); fast kernels exist for training on short"
        " rows on a CPU and for sparse patterns on long rows, otherwise the reference is used",
    )
    sinks: bool = Field(
        False,
        description="a learned score per head for attending to nothing (Agarwal et al. 2025, gpt-oss); fast kernels exist for sparse"
        " patterns on long rows, otherwise the reference is used",
    )
    value_residual: AnyValueResidual = Field(
        NoValueResidualConfig(), description="mixing of later blocks' values with those of the first (self-attention only)"
    )
    approximation: AnyApproximation = Field(NoApproximationConfig(), description="approximation of softmax attention")

    @field_validator("pattern", mode="before")
    @classmethod
    def _a_list_is_a_cycle(cls, value: Any) -> Any:
        return {"kind": "cycle", "patterns": value} if isinstance(value, list) else value

    @model_validator(mode="after")
    def _approximations_stand_alone(self) -> "MultiHeadAttentionConfig":
        if self.approximation.kind != "none":
            others = {"pattern": self.pattern != FullPatternConfig(), "softcap": self.softcap is not None, "sinks": self.sinks}
            others["score"] = self.score != ScaledDotProductConfig()
            if found := [name for name, there in others.items() if there]:
                raise ValueError(
                    f"approximation = {self.approximation.kind!r} computes no attention scores, which {found[0]} needs; remove one of them"
                )
        return self


AnyAttention = Annotated[MultiHeadAttentionConfig, Slot("attention", MultiHeadAttentionConfig)]
register_component("attention")(MultiHeadAttentionConfig)


class FieldOption(NamedTuple):
    """A field value that is documented like a component.

    Attributes:
        equation: equation, with its source.
        advice: cost and use.
    """

    equation: str
    advice: str


ATTENTION_OPTIONS = {
    "n_kv_heads": FieldOption(
        "Grouped queries: each head of keys and values serves n_heads / n_kv_heads of queries (Ainslie et al. 2023); with one for all,"
        " multi-query attention (Shazeer 2019).",
        "Fewer weights and a proportionally smaller cache; 4 to 8 query heads per key-value head lose little quality, a single key-value"
        " head loses some.",
    ),
    "attention.qk_norm": FieldOption(
        "A norm of each head's queries and keys before rotary positions (Dehghani et al. 2023, after Henry et al. 2020):"
        " Norm(q) . Norm(k) / sqrt(d_k).",
        "Two norms per layer over d_k columns; bounds the scores, which stabilizes large models and high learning rates.",
    ),
    "attention.softcap": FieldOption(
        "Bounded scores: c tanh(Q K^T / (c sqrt(d_k))) (Gemma Team 2024).",
        "Fast kernels exist for training on a CPU up to 1,024 keys without learned position biases, and for sparse patterns on long rows;"
        " otherwise the reference is used, so inference is slower. Use it where qk_norm is not possible, as with Gemma 2's weights.",
    ),
    "attention.sinks": FieldOption(
        "A learned score per head for attending to nothing, included in the softmax (Agarwal et al. 2025, gpt-oss):"
        " exp(S_ij) / (exp(s_h) + sum_j exp(S_ij)).",
        "Fast kernels exist for sparse patterns on long rows; otherwise the reference is used, so training and inference are slower. Lets a"
        " head attend to nothing, useful with windows.",
    ),
    "attention.output_projection": FieldOption(
        "The output projection W_O, or none: Concat(head_1, ..., head_h) W_O (Vaswani et al. 2017, section 3.2.2).",
        "Without it, d_model^2 fewer weights per layer, and heads are mixed only in the feed-forward network. For experiments.",
    ),
}
"""Options of attention heads, by their field in ``[model]``."""


AnyFeedForward = Annotated[ComponentConfig, Slot("feed_forward")]
AnyExpert = Annotated[ComponentConfig, Slot("expert")]
"""Network of each expert of a mixture."""


@register_component("feed_forward", "expert")
class FeedForwardConfig(ComponentConfig):
    """Position-wise feed-forward network f(x W_1 + b_1) W_2 + b_2 (Vaswani et al. 2017, eq. 2).

    f is max(0, x) (relu), x Phi(x) (gelu, Hendrycks & Gimpel 2016; gelu-tanh is its approximation), x sigmoid(x) (silu) or max(0, x)^2
    (squared-relu, So et al. 2021).

    Cost and use: 2 d_model d_ff weights, two thirds of a block; all activations are about equally fast. gelu: GPT-2, BERT and ViT.
    """

    kind: Literal["relu", "gelu", "gelu-tanh", "silu", "squared-relu"] = "relu"
    bias: bool = Field(True, description="biases on W_1 and W_2")


@register_component("feed_forward", "expert")
class GatedFeedForwardConfig(ComponentConfig):
    """Gated feed-forward network (f(x W_g) * (x W_1)) W_2 (Shazeer 2020, eq. 5 and 6).

    f is sigmoid (glu, Dauphin et al. 2017), max(0, x) (reglu), gelu (geglu; geglu-tanh is its approximation) or silu (swiglu).

    Cost and use: 3 d_model d_ff weights: use two thirds of a plain network's d_ff for equal size; slightly better at equal size. Llama
    (swiglu), Gemma and T5 v1.1 (geglu-tanh).
    """

    kind: Literal["glu", "reglu", "geglu", "geglu-tanh", "swiglu"] = "swiglu"
    bias: bool = Field(False, description="biases on W_g, W_1 and W_2")


class NormPlacementOption(NamedTuple):
    """Placement of a block's norms.

    Attributes:
        equation: equation of a sub-layer or block, with its source.
        advice: cost and use.
        final_norm: whether the stack ends with a norm, since its blocks do not.
    """

    equation: str
    advice: str
    final_norm: bool


NORM_PLACEMENTS = {
    "post": NormPlacementOption(
        "x' = Norm(x + f(x)) (Vaswani et al. 2017, section 5.4)",
        "Slightly better than pre where it trains; requires learning-rate warmup, and fails in deep stacks.",
        final_norm=False,
    ),
    "pre": NormPlacementOption(
        "x' = x + f(Norm(x)), and a norm at the end (Xiong et al. 2020, figure 1b)",
        "Trains at any depth and rate; common since GPT-2.",
        final_norm=True,
    ),
    "sandwich": NormPlacementOption(
        "x' = x + Norm_out(f(Norm(x))), and a norm at the end (Ding et al. 2021; Gemma Team 2024)",
        "A second norm per sub-layer; bounds the residual stream of large models.",
        final_norm=True,
    ),
    "parallel": NormPlacementOption(
        "x' = x + Attention(Norm(x)) + FFN(Norm(x)), and a norm at the end (Wang & Komatsuzaki 2021; PaLM, 2022)",
        "One norm per block, and two sub-layers that can run in parallel; almost no loss of quality in large models.",
        final_norm=True,
    ),
    "parallel-separate": NormPlacementOption(
        "x' = x + Attention(Norm_1(x)) + FFN(Norm_2(x)), and a norm at the end (Black et al. 2022, section 2.1; GPT-NeoX)",
        "As parallel, with a norm more per block; for GPT-NeoX and Pythia. Its weights have the names of pre.",
        final_norm=True,
    ),
}
"""Norm placements by their name in a recipe (``norm_placement``)."""
