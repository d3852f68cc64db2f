"""Schemas of rotary position scalings, which extend a model to texts longer than those of its training: one class per kind."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from transom.config.component_registry import register_component
from transom.config.schema import ComponentConfig, Slot


class RopeScalingConfig(ComponentConfig):
    """Base of the scalings of one block."""

    LENGTH_DEPENDENT: ClassVar[bool] = False
    """Whether the frequencies depend on the length of the text."""

    def trained_length(self, max_seq_len: int) -> int:
        """Return the longest sequence, in tokens, of the training before the extension."""
        return max_seq_len


AnyBlockScaling = Annotated[RopeScalingConfig, Slot("rope_scaling", RopeScalingConfig)]
"""Scaling of one block."""

AnyRopeScaling = Annotated[ComponentConfig, Slot("stack_rope_scaling")]
"""Scaling of one block, or a cycle of scalings over the blocks of a stack."""

PerPair = tuple[Annotated[float, Field(gt=0)], ...]


def _factor() -> Any:
    return Field(ge=1, description="ratio of the new to the trained length")


class OriginalLengthConfig(RopeScalingConfig):
    """Base of the scalings that depend on the length before the extension."""

    factor: float = _factor()
    original_max_seq_len: int | None = Field(
        None, ge=1, description="longest sequence before the extension; default max_seq_len / factor, in fine-tuning that of the run"
    )

    def trained_length(self, max_seq_len: int) -> int:
        return self.original_max_seq_len or max(1, round(max_seq_len / self.factor))


@register_component("rope_scaling", "stack_rope_scaling")
class NoScalingConfig(RopeScalingConfig):
    """No scaling: pair k rotates by theta_k = rope_theta^(-2k / d) per position, d the rotated width (Su et al. 2021, eq. 15).

    Cost and use: For lengths up to those of training.
    """

    kind: Literal["none"] = "none"


@register_component("rope_scaling", "stack_rope_scaling")
class LinearScalingConfig(RopeScalingConfig):
    """Position interpolation (Chen et al. 2023, eq. 3): theta_k / factor, so position i gets the angles of position i / factor.

    Cost and use: No cost; compresses short distances too, so it needs some training at the new length. Gemma 3 (global layers).
    """

    kind: Literal["linear"] = "linear"
    factor: float = _factor()


@register_component("rope_scaling", "stack_rope_scaling")
class NtkScalingConfig(RopeScalingConfig):
    """Larger base (Peng et al. 2023, section 3.1, after bloc97): rope_theta becomes rope_theta * factor^(d / (d - 2)).

    The slowest pair of dimensions rotates factor times slower, the fastest is unchanged; d is the rotated width.

    Cost and use: No cost; the best fixed scaling without training at the new length.
    """

    kind: Literal["ntk"] = "ntk"
    factor: float = _factor()


@register_component("rope_scaling", "stack_rope_scaling")
class DynamicScalingConfig(OriginalLengthConfig):
    """Base that grows with the text (Peng et al. 2023, section 3.3, "Dynamic NTK", after emozilla).

    A text of n tokens has the base rope_theta * (factor * max(n, L) / L - (factor - 1))^(d / (d - 2)), L = original_max_seq_len, d the
    rotated width: texts up to L are unchanged, whatever else is in the batch. For generation, n is the length of the prompt plus the
    maximum number of new tokens, known at the start: all keys in the cache then have the frequencies of the query, and the result equals
    that of a single pass over n tokens. The decoder of an encoder-decoder, whose final length is unknown, always takes n = max_seq_len.

    Cost and use: Cosines and sines are computed in each pass, and the compiled decoder is not available. Needs no training at the new
    length; short texts stay as good as before. Two limits of new tokens can give different tokens once one of them exceeds L.
    """

    LENGTH_DEPENDENT: ClassVar[bool] = True
    kind: Literal["dynamic"] = "dynamic"


@register_component("rope_scaling", "stack_rope_scaling")
class YarnScalingConfig(OriginalLengthConfig):
    """YaRN (Peng et al. 2023, section 3): slow rotations are slowed down, fast ones are unchanged, and scores are sharpened.

    Pairs with less than beta_slow rotations within original_max_seq_len tokens get theta_k / factor, those with more than beta_fast keep
    theta_k, and a ramp lies between. It is linear in k, as in the authors' code; in the paper it is linear in the rotations. Cosines
    and sines are multiplied by attention_factor, by default m(1) = 0.1 ln(factor) + 1; with mscale and mscale_all_dim, by
    m(mscale) / m(mscale_all_dim), m(s) = 0.1 s ln(factor) + 1 (DeepSeek-V3's code).

    Cost and use: No cost; for large factors, best after a short training at the new length. Qwen, DeepSeek and gpt-oss.
    """

    kind: Literal["yarn"] = "yarn"
    beta_fast: float = Field(32.0, gt=0, description="rotations within the original length from which on a pair is unchanged")
    beta_slow: float = Field(1.0, gt=0, description="rotations within the original length up to which a pair is slowed down by factor")
    attention_factor: float | None = Field(None, gt=0, description="multiplies cosines and sines; default as defined above")
    mscale: float | None = Field(None, gt=0, description="s of the numerator of the default attention_factor")
    mscale_all_dim: float | None = Field(None, gt=0, description="s of the denominator of the default attention_factor")
    truncate: bool = Field(True, description="round the ends of the ramp to whole pairs, the lower one down and the upper one up")

    @model_validator(mode="after")
    def _fields_fit(self) -> "YarnScalingConfig":
        if self.beta_fast < self.beta_slow:
            raise ValueError(f"expected beta_fast >= beta_slow, found {self.beta_fast:g} and {self.beta_slow:g}; change one of them")
        if (self.mscale is None) != (self.mscale_all_dim is None):
            raise ValueError("expected both of mscale and mscale_all_dim, found one; set the other one or remove both")
        if self.mscale is not None and self.attention_factor is not None:
            raise ValueError("expected attention_factor or mscale and mscale_all_dim, found both; remove one of them")
        return self


@register_component("rope_scaling", "stack_rope_scaling")
class Llama3ScalingConfig(OriginalLengthConfig):
    """Scaling by wavelength (Llama 3.1, in the code released with Dubey et al. 2024, which does not describe it).

    With r = L theta_k / (2 pi) rotations within L = original_max_seq_len tokens and s = (r - low_freq_factor) / (high_freq_factor -
    low_freq_factor) limited to [0, 1]: (1 - s) theta_k / factor + s theta_k.

    Cost and use: No cost; with training at the new length. Llama 3.1 and later, with factor 8 (3.2: 32) and L = 8192.
    """

    kind: Literal["llama3"] = "llama3"
    low_freq_factor: float = Field(
        1.0, gt=0, description="rotations within the original length up to which a pair is slowed down by factor"
    )
    high_freq_factor: float = Field(4.0, gt=0, description="rotations within the original length from which on a pair is unchanged")

    @model_validator(mode="after")
    def _factors_are_ordered(self) -> "Llama3ScalingConfig":
        if self.high_freq_factor <= self.low_freq_factor:
            raise ValueError(
                f"expected high_freq_factor above low_freq_factor, found {self.high_freq_factor:g} and {self.low_freq_factor:g}; change one"
                " of them"
            )
        return self


@register_component("rope_scaling", "stack_rope_scaling")
class LongRopeScalingConfig(RopeScalingConfig):
    """LongRoPE (Ding et al. 2024): a searched factor for each pair, theta_k / short_factor_k or theta_k / long_factor_k.

    Texts of more than L = original_max_seq_len tokens get long_factor, others short_factor; the length of a text is defined as for
    dynamic. Cosines and sines are multiplied by attention_factor, by default sqrt(1 + ln(factor) / ln(L)), 1 if factor is at most 1.

    Cost and use: Cosines and sines are computed in each pass, and the compiled decoder is not available. For factors above 8, after
    training with factors found by search. Phi-3 and Phi-4-mini.
    """

    LENGTH_DEPENDENT: ClassVar[bool] = True
    kind: Literal["longrope"] = "longrope"
    short_factor: PerPair = Field(strict=False, description="divisor of each pair's frequency in texts up to the original length")
    long_factor: PerPair = Field(strict=False, description="divisor of each pair's frequency in longer texts")
    original_max_seq_len: int = Field(ge=2, description="longest sequence before the extension")
    factor: float | None = Field(
        None, gt=0, description="ratio of the new to the trained length; default max_seq_len / original_max_seq_len"
    )
    attention_factor: float | None = Field(None, gt=0, description="multiplies cosines and sines; default as defined above")

    @model_validator(mode="after")
    def _lists_have_one_length(self) -> "LongRopeScalingConfig":
        if not self.short_factor or len(self.short_factor) != len(self.long_factor):
            raise ValueError(
                "expected short_factor and long_factor with one number per rotated pair, found"
                f" {len(self.short_factor)} and {len(self.long_factor)} numbers; change one of them"
            )
        return self

    def trained_length(self, max_seq_len: int) -> int:
        return self.original_max_seq_len


@register_component("stack_rope_scaling")
class CycleScalingConfig(ComponentConfig):
    """One scaling per layer: block k has scaling k mod n (Gemma Team 2025, section 2: only global layers are scaled).

    A recipe can write it as a list: ``rope_scaling = ["none", { kind = "linear", factor = 8.0 }]``.

    Cost and use: That of its scalings.
    """

    kind: Literal["cycle"]
    scalings: tuple[AnyBlockScaling, ...] = Field(
        strict=False, min_length=1, description="scalings of the first blocks, which later ones repeat"
    )

    @field_validator("scalings", mode="before")
    @classmethod
    def _expand_names(cls, value: Any) -> Any:
        return [{"kind": each} if isinstance(each, str) else each for each in value] if isinstance(value, list | tuple) else value


def block_scalings(scaling: ComponentConfig) -> tuple[RopeScalingConfig, ...]:
    """Return the scalings of the first blocks of a stack; later blocks repeat them in order."""
    if isinstance(scaling, CycleScalingConfig):
        return scaling.scalings
    assert isinstance(scaling, RopeScalingConfig)
    return (scaling,)


def with_original_length(scaling: ComponentConfig, length: int) -> ComponentConfig:
    """Return a scaling, or a cycle of scalings, with ``length`` as the length before the extension where none is set."""
    if isinstance(scaling, CycleScalingConfig):
        return scaling.model_copy(update={"scalings": tuple(with_original_length(each, length) for each in scaling.scalings)})
    if isinstance(scaling, OriginalLengthConfig) and scaling.original_max_seq_len is None:
        return scaling.model_copy(update={"original_max_seq_len": length})
    return scaling
