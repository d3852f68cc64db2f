"""The schemas of the components that every family is built from: one class a component, told apart by ``kind``.

docs/components.md is written from their docstrings.
"""

from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field, field_validator, model_validator

from transom.config.approximations import AnyApproximation, NoApproximationConfig
from transom.config.component_registry import register_component
from transom.config.patterns import AnyPattern, FullPatternConfig
from transom.config.schema import ComponentConfig, Slot

AnyNorm = Annotated[ComponentConfig, Slot("norm")]
AnyTokenNorm = Annotated[ComponentConfig, Slot("qk_norm")]
"""A norm that knows one vector at a time."""


@register_component("norm", "qk_norm")
class LayerNormConfig(ComponentConfig):
    """Layer normalisation (Ba et al. 2016): gamma * (x - mean) / sqrt(variance + eps) + beta.

    Cost and use: Two passes over a token's vector; the default, and the norm of the Transformer of 2017, GPT-2, BERT and ViT.
    """

    kind: Literal["layernorm"] = "layernorm"
    eps: float = Field(1e-5, gt=0, description="added to the variance before the square root")
    bias: bool = Field(True, description="the shift beta")


@register_component("norm", "qk_norm")
class RmsNormConfig(ComponentConfig):
    """Root-mean-square normalisation (Zhang & Sennrich 2019): gamma * x / sqrt(mean(x^2) + eps).

    Cost and use: No mean and no shift, so a little cheaper than LayerNormConfig at equal quality; Llama and most models since.
    """

    kind: Literal["rmsnorm"] = "rmsnorm"
    eps: float = Field(1e-6, gt=0, description="added to the mean square before the square root")


@register_component("norm", "qk_norm")
class DynamicTanhConfig(ComponentConfig):
    """A bounded curve instead of statistics (Zhu et al. 2025, eq. 1): gamma * tanh(alpha * x) + beta, with one learned alpha.

    Cost and use: No sums over the vector; slow to learn where alpha's start does not suit the depth. For experiments.
    """

    kind: Literal["dyt"] = "dyt"
    alpha: float = Field(0.5, gt=0, description="alpha before training")


@register_component("norm", "qk_norm")
class NoNormConfig(ComponentConfig):
    """No normalisation: x.

    Cost and use: Free; deep stacks do not train with it at usual learning rates. For experiments.
    """

    kind: Literal["none"] = "none"


@register_component("norm")
class BatchNormConfig(ComponentConfig):
    """Batch normalisation (Ioffe & Szegedy 2015): gamma * (x - mean) / sqrt(variance + eps) + beta, a column's statistics over tokens.

    In training they are those of all true tokens that are computed together, padding left out. In evaluation they are running ones, which
    each step moves by ``momentum`` towards those of its whole batch; they are saved with the weights.

    Cost and use: For comparison with layer norm, not for use on text. In training, the output for a token depends on later
    tokens and on other rows, so that a decoder is causal in evaluation only; rows of other lengths give other statistics than those that
    evaluation has. Slices (training.grad_accum_steps) are normalised apart, so their number changes the result; training.average averages
    statistics too, which are then no model's own; training.processes must be 1.
    """

    kind: Literal["batchnorm"] = "batchnorm"
    eps: float = Field(1e-5, gt=0, description="added to the variance before the square root")
    momentum: float = Field(0.1, gt=0, le=1, description="share of a step's statistics in the running ones")


class PositionConfig(ComponentConfig):
    """What every position component has."""

    BIASES: ClassVar[bool] = False
    """Whether it is told by what is added to the scores."""

    COMPUTED: ClassVar[bool] = False
    """Whether nothing of it is learned, so that counting parameters need not make its tables."""

    def turned(self, d_head: int) -> int:
        """Count the columns of a head that are turned by positions."""
        return 0


AnyPosition = Annotated[PositionConfig, Slot("position", PositionConfig)]
AnyPatchPosition = Annotated[PositionConfig, Slot("patch_position", PositionConfig)]
"""Of patches of an image."""


@register_component("position")
class SinusoidalConfig(PositionConfig):
    """Fixed sines and cosines added to the embeddings (Vaswani et al. 2017, section 3.5).

    P[i, 2k] = sin(i / base^(2k / d_model)), P[i, 2k + 1] = cos(i / base^(2k / d_model)).

    Cost and use: Nothing to learn and next to no time; the default for translation, where lengths are those of training.
    """

    COMPUTED: ClassVar[bool] = True
    kind: Literal["sinusoidal"] = "sinusoidal"
    base: float = Field(10000.0, gt=1, description="the longest wavelength is just below 2 pi times this")


@register_component("position", "patch_position")
class LearnedPositionConfig(PositionConfig):
    """A learned vector a position, added to the embeddings (Gehring et al. 2017, section 3.1): h = E[x] + P[i].

    Cost and use: max_seq_len * d_model parameters; as good as sinusoids within the trained length and useless beyond. GPT-2, BERT.
    """

    kind: Literal["learned"] = "learned"


@register_component("patch_position")
class Sinusoidal2dConfig(PositionConfig):
    """Fixed sines and cosines of a patch's row in one half of its vector and of its column in the other (He et al. 2022, MAE, section 3).

    Each half is the sinusoid of Vaswani et al. 2017 over d_model / 2 columns. A classification token has none.

    Cost and use: Nothing to learn, and any grid of patches has one; about as good as learned positions, better on little data.
    """

    COMPUTED: ClassVar[bool] = True
    kind: Literal["sinusoidal-2d"] = "sinusoidal-2d"
    base: float = Field(10000.0, gt=1, description="the longest wavelength is just below 2 pi times this")


class FieldOption(NamedTuple):
    """What a field of a component can be set to, told as a component is.

    Attributes:
        equation: what it is, with its source.
        advice: what it costs and when to use it.
    """

    equation: str
    advice: str


ROPE_SCALINGS = {
    "none": FieldOption("Angles as in training.", "For lengths up to those of training."),
    "linear": FieldOption(
        "Positions squeezed: position i turns as i / factor did (Chen et al. 2023).",
        "Costs nothing; near tokens come nearer too, so that it needs some training at the new length.",
    ),
    "ntk": FieldOption(
        "The base raised to base * factor^(d / (d - 2)), d the width that is turned: the slowest pair is squeezed by factor, the fastest"
        " not at all (Peng et al. 2023, section 3.1, after bloc97).",
        "Costs nothing; the one without training at the new length.",
    ),
    "yarn": FieldOption(
        "Pairs that turn more than 32 times within the trained length stay, those of less than one turn are squeezed, those between in"
        " part; scores are a little sharper (Peng et al. 2023, section 3).",
        "Costs nothing; the one for large factors, best after a short training at the new length.",
    ),
}
"""The kinds of ``RotaryConfig.rope_scaling``."""


@register_component("position")
class RotaryConfig(PositionConfig):
    """Queries and keys turned by an angle that grows with the position (Su et al. 2021, eq. 34).

    The pair (x_k, x_{k + d/2}) of position i turns by i / base^(2k / d), d the width that is turned, so that q_i . k_j depends on i - j.
    The halves are paired as in GPT-NeoX and Llama; the paper pairs neighbours.

    Cost and use: A few operations a query and key; the best choice for decoders, and with scaling it reaches beyond its training.
    """

    COMPUTED: ClassVar[bool] = True
    kind: Literal["rotary"] = "rotary"
    rope_theta: float = Field(10000.0, gt=1, description="the longest wavelength is just below 2 pi times this")
    partial_rotary_factor: float = Field(1.0, gt=0, le=1, description="share of each head's width that is turned (GPT-NeoX: 0.25)")
    rope_scaling: Literal["none", "linear", "ntk", "yarn"] = Field(
        "none",
        description="for contexts longer than those of training: squeeze positions (linear, Chen et al. 2023), raise the base (ntk), or"
        " squeeze slow turns only (yarn, Peng et al. 2023)",
    )
    factor: float = Field(1.0, ge=1, description="how many times longer, where rope_scaling is not none")
    original_max_seq_len: int | None = Field(
        None, ge=1, description="for yarn, the longest sequence before scaling; default max_seq_len / factor"
    )

    @model_validator(mode="after")
    def _a_factor_needs_a_scaling(self) -> "RotaryConfig":
        if (self.factor > 1) != (self.rope_scaling != "none"):
            raise ValueError(f"expected factor > 1 with a rope_scaling and only then, found {self.factor:g} with {self.rope_scaling!r}")
        if self.original_max_seq_len is not None and self.rope_scaling != "yarn":
            raise ValueError(f"expected original_max_seq_len with rope_scaling 'yarn' only, found it with {self.rope_scaling!r}; remove it")
        return self

    def turned(self, d_head: int) -> int:
        """Count whole pairs of columns, a share of all."""
        return int(d_head * self.partial_rotary_factor) // 2 * 2


@register_component("position")
class AlibiConfig(PositionConfig):
    """A penalty on distance, added to the scores (Press et al. 2022, section 3): -m_h |i - j|, slopes m_h = 2^(-8h / H) for head h of H.

    Where H is no power of two the slopes lie between those of the next smaller and the next larger one. Encoders, which the paper does not
    speak of, have the same penalty to both sides.

    Cost and use: A bias on every score and nothing to learn; degrades gently beyond the trained length, weaker at long recall.
    """

    BIASES: ClassVar[bool] = True
    COMPUTED: ClassVar[bool] = True
    kind: Literal["alibi"] = "alibi"


@register_component("position")
class RelativePositionConfig(PositionConfig):
    """A learned bias a head and bucket of distance, added to the scores (Raffel et al. 2020, section 2.1): S_ij + b_h[bucket(j - i)].

    Half of the buckets hold one distance each, the other half grow logarithmically up to ``max_distance``; encoders tell the two
    directions apart. All blocks of a stack share the table.

    Cost and use: A learned bias on every score, so slower attention in training; no limit of length. T5.
    """

    BIASES: ClassVar[bool] = True
    kind: Literal["relative"] = "relative"
    n_buckets: int = Field(32, ge=4, le=4096, description="buckets of distances")
    max_distance: int = Field(128, ge=2, description="distances from here on share the last bucket")

    @model_validator(mode="after")
    def _distances_fit(self) -> "RelativePositionConfig":
        if self.max_distance <= self.n_buckets // 2:
            raise ValueError(f"expected max_distance above n_buckets / 2, found {self.max_distance} and {self.n_buckets}")
        return self


@register_component("position", "patch_position")
class NoPositionConfig(PositionConfig):
    """No positions (Kazemnejad et al. 2023): a decoder can still tell order from what its mask hides, an encoder cannot.

    Cost and use: Free; for decoders in experiments, and for bags of words.
    """

    kind: Literal["none"] = "none"


AnyValueResidual = Annotated[ComponentConfig, Slot("value_residual")]


@register_component("value_residual")
class NoValueResidualConfig(ComponentConfig):
    """Each block's own values.

    Cost and use: The usual one.
    """

    kind: Literal["none"] = "none"


@register_component("value_residual")
class ValueResidualConfig(ComponentConfig):
    """Values mixed with those of the stack's first block (Zhou et al. 2024, ResFormer): V'_n = lambda_1 V_1 + lambda_2 V_n, n > 1.

    ``fixed`` keeps the two factors, ``learned`` starts from them, a pair a block. V_1 is as the first block projects it, and the mix is
    what the cache keeps. Cross-attention's values stay as they are.

    Cost and use: Two products a value and no larger cache; for deep stacks, whose last blocks otherwise hardly know what their tokens were.
    """

    kind: Literal["fixed", "learned"] = "learned"
    lambda_1: float = Field(0.5, description="lambda_1, of the first block's values")
    lambda_2: float = Field(0.5, description="lambda_2, of the block's own values")


AnyScore = Annotated[ComponentConfig, Slot("score")]


@register_component("score")
class ScaledDotProductConfig(ComponentConfig):
    """S = Q K^T / sqrt(d_k) (Vaswani et al. 2017, eq. 1).

    Cost and use: The usual one, and the only one with fast paths; any other comes from a plugin and is computed by the equation.
    """

    kind: Literal["scaled-dot"] = "scaled-dot"


class MultiHeadAttentionConfig(ComponentConfig):
    """Scaled dot-product attention in several heads (Vaswani et al. 2017, section 3.2).

    softmax(Q K^T / sqrt(d_k)) V a head; with fewer key heads than query heads (``n_kv_heads``), grouped-query attention (Ainslie et al.
    2023), with one, multi-query attention (Shazeer 2019).

    Cost and use: Time and memory of scores grow with the square of the length. Fewer key heads make the cache smaller by as much, at little
    cost in quality; qk_norm and softcap keep large models stable; sinks let a head look nowhere.
    """

    kind: Literal["multihead"] = "multihead"
    qkv_bias: bool = Field(True, description="biases on W_Q, W_K and W_V")
    output_projection: bool = Field(True, description="mix the heads with W_O; without it n_heads * d_value must equal d_model")
    output_bias: bool = Field(True, description="a bias on W_O")
    qk_norm: AnyTokenNorm = Field(
        NoNormConfig(),
        description="a norm of each head's queries and keys, before positions turn them (Dehghani et al. 2023, after Henry et al. 2020)",
    )
    pattern: AnyPattern = Field(
        FullPatternConfig(), description="which tokens of its own sequence a token looks at, among those that the family lets it see"
    )
    score: AnyScore = Field(ScaledDotProductConfig(), description="how queries are compared with keys, before softcap, bias and mask")
    softcap: float | None = Field(
        None,
        gt=0,
        description="c of c * tanh(Q K^T / (c sqrt(d_k))), before any bias (Gemma Team 2024); short training on a processor and"
        " sparse patterns of long rows have a fast path with it, other attention is then computed by the equation",
    )
    sinks: bool = Field(
        False,
        description="a learned score per head for attending to nothing (Agarwal et al. 2025, gpt-oss); sparse patterns of long rows"
        " have a fast path with it, other attention is then computed by the equation",
    )
    value_residual: AnyValueResidual = Field(
        NoValueResidualConfig(), description="whether a stack's later blocks mix their values with those of its first (self-attention only)"
    )
    approximation: AnyApproximation = Field(NoApproximationConfig(), description="what stands in for the softmax over all pairs")

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
                raise ValueError(f"approximation = {self.approximation.kind!r} has no scores for {found[0]} to act on; remove one of them")
        return self


AnyAttention = Annotated[MultiHeadAttentionConfig, Slot("attention", MultiHeadAttentionConfig)]
register_component("attention")(MultiHeadAttentionConfig)

ATTENTION_OPTIONS = {
    "n_kv_heads": FieldOption(
        "Grouped queries: each head of keys and values serves n_heads / n_kv_heads of queries (Ainslie et al. 2023); with one for all,"
        " multi-query attention (Shazeer 2019).",
        "Fewer weights, and a cache smaller by as much; 4 to 8 queries a key cost little quality, one key for all some.",
    ),
    "attention.qk_norm": FieldOption(
        "A norm of each head's queries and keys before positions turn them (Dehghani et al. 2023, after Henry et al. 2020):"
        " Norm(q) . Norm(k) / sqrt(d_k).",
        "Two norms a layer over d_k columns; bounds the scores, so that large models and high learning rates stay stable.",
    ),
    "attention.softcap": FieldOption(
        "Scores bounded by a curve: c tanh(Q K^T / (c sqrt(d_k))) (Gemma Team 2024).",
        "Training on a processor keeps its fast path up to 1,024 keys without learned position biases, and sparse patterns of long rows"
        " keep theirs; all else is computed by the equation, so answers are slower. Use it where qk_norm cannot be had, as in Gemma 2's"
        " weights.",
    ),
    "attention.sinks": FieldOption(
        "A learned score a head for attending to nothing, which takes its part of the softmax (Agarwal et al. 2025, gpt-oss):"
        " exp(S_ij) / (exp(s_h) + sum_j exp(S_ij)).",
        "Sparse patterns of long rows keep their fast path; all else is computed by the equation, so training and answers are slower. Lets"
        " a head look nowhere, above all beside windows.",
    ),
    "attention.output_projection": FieldOption(
        "The map W_O behind the heads, or none: Concat(head_1, ..., head_h) W_O (Vaswani et al. 2017, section 3.2.2).",
        "Without it d_model^2 weights a layer fewer, and heads that meet only in the feed-forward network. For experiments.",
    ),
}
"""What one can change in the heads of attention, by its field in ``[model]``."""


AnyFeedForward = Annotated[ComponentConfig, Slot("feed_forward")]
AnyExpert = Annotated[ComponentConfig, Slot("expert")]
"""The network that each expert of a mixture is."""


@register_component("feed_forward", "expert")
class FeedForwardConfig(ComponentConfig):
    """Position-wise feed-forward network f(x W_1 + b_1) W_2 + b_2 (Vaswani et al. 2017, eq. 2).

    f is max(0, x) (relu), x Phi(x) (gelu, Hendrycks & Gimpel 2016; gelu-tanh is its approximation), x sigmoid(x) (silu) or max(0, x)^2
    (squared-relu, So et al. 2021).

    Cost and use: 2 d_model d_ff weights, two thirds of a block; all take about the same time. gelu: GPT-2, BERT and ViT.
    """

    kind: Literal["relu", "gelu", "gelu-tanh", "silu", "squared-relu"] = "relu"
    bias: bool = Field(True, description="biases on W_1 and W_2")


@register_component("feed_forward", "expert")
class GatedFeedForwardConfig(ComponentConfig):
    """Gated feed-forward network (f(x W_g) * (x W_1)) W_2 (Shazeer 2020, eq. 5 and 6).

    f is sigmoid (glu, Dauphin et al. 2017), max(0, x) (reglu), gelu (geglu) or silu (swiglu).

    Cost and use: 3 d_model d_ff weights: take two thirds of a plain network's d_ff for equal size; a little better at equal size. Llama
    (swiglu).
    """

    kind: Literal["glu", "reglu", "geglu", "swiglu"] = "swiglu"
    bias: bool = Field(False, description="biases on W_g, W_1 and W_2")


class NormPlacementOption(NamedTuple):
    """Where a block's norms stand.

    Attributes:
        equation: of a sub-layer or block, with its source.
        advice: what it costs and when to use it.
        final_norm: whether the stack ends with one, since its blocks do not.
    """

    equation: str
    advice: str
    final_norm: bool


NORM_PLACEMENTS = {
    "post": NormPlacementOption(
        "x' = Norm(x + f(x)) (Vaswani et al. 2017, section 5.4)",
        "A little better than pre where it trains; needs a warm-up of the learning rate, and fails in deep stacks.",
        final_norm=False,
    ),
    "pre": NormPlacementOption(
        "x' = x + f(Norm(x)), and a norm at the end (Xiong et al. 2020, figure 1b)",
        "Trains at any depth and rate; the usual one since GPT-2.",
        final_norm=True,
    ),
    "sandwich": NormPlacementOption(
        "x' = x + Norm_out(f(Norm(x))), and a norm at the end (Ding et al. 2021; Gemma Team 2024)",
        "A second norm a sub-layer; holds large models' residual stream in bounds.",
        final_norm=True,
    ),
    "parallel": NormPlacementOption(
        "x' = x + Attention(Norm(x)) + FFN(Norm(x)), and a norm at the end (Wang & Komatsuzaki 2021; PaLM, 2022)",
        "One norm a block, and two products that need not wait for each other; next to no loss in large models.",
        final_norm=True,
    ),
}
"""The places of a norm by their name in a recipe (``norm_placement``)."""
