"""The schema of how answers are searched for."""

from typing import Annotated

from pydantic import Field, model_validator

from transom.config.schema import Schema


class BeamSearchConfig(Schema):
    """Settings of beam search, in validation and by default in inference."""

    beam_size: int = Field(5, ge=1, le=1024, description="hypotheses per sentence; 1 is greedy search")
    length_penalty: float = Field(
        0.6, ge=0, le=10, description="GNMT's alpha: scores are divided by ((5 + length) / 6)^alpha (Wu et al. 2016, eq. 14)"
    )
    min_length: int = Field(0, ge=0, description="fewest tokens before the end symbol")
    max_length: int = Field(256, ge=1, description="most tokens of a translation, the end symbol included")
    max_length_ratio: float = Field(3.0, gt=0, description="most target tokens for each source token, plus ten")

    @model_validator(mode="after")
    def _room_for_the_shortest(self) -> "BeamSearchConfig":
        if self.min_length >= self.max_length:
            raise ValueError(
                f"expected decoding.min_length below decoding.max_length, found {self.min_length} and {self.max_length}; change one of them"
            )
        return self


class TextInferenceConfig(Schema):
    """Settings of encoders at inference."""

    batch_tokens: int = Field(8192, ge=1, description="maximum tokens per batch, padding included; a longer text is a batch of its own")


class ImageInferenceConfig(Schema):
    """Settings of image classifiers at inference."""

    batch_size: int = Field(256, ge=1, description="images per batch")


class SamplingConfig(Schema):
    """Settings of sampling from a language model: changes of the distribution, and stopping."""

    temperature: float = Field(1.0, ge=0, description="divisor of the logits; 0 selects the most probable token")
    top_k: int | None = Field(None, ge=1, description="keep the k most probable tokens (Fan et al. 2018)")
    top_p: float | None = Field(None, gt=0, le=1, description="keep the likeliest tokens of this total probability (Holtzman et al. 2020)")
    min_p: float | None = Field(
        None, ge=0, le=1, description="keep tokens of at least this share of the likeliest's probability (Nguyen et al. 2024)"
    )
    typical_p: float | None = Field(
        None, gt=0, le=1, description="keep tokens of this total probability, surprise nearest the entropy first (Meister et al. 2023)"
    )
    repetition_penalty: float = Field(
        1.0, gt=0, le=100, description="log p of tokens of prompt and text is multiplied by it (after Keskar et al. 2019)"
    )
    frequency_penalty: float = Field(0.0, ge=-100, le=100, description="taken from a token's log p for each time it was drawn")
    presence_penalty: float = Field(0.0, ge=-100, le=100, description="taken from a token's log p once it was drawn")
    early_exit_threshold: float = Field(
        1.0,
        ge=0,
        le=1,
        description="a token exits after the first block at which the two highest probabilities of the next token differ by this much"
        " (Schuster et al. 2022); 1 uses all blocks; for models trained with training.early_exit_loss",
    )
    seed: int = Field(1, ge=0, lt=2**63, description="seed of the samples")
    max_new_tokens: int = Field(256, ge=1, description="most tokens that are drawn, the end symbol not counted")
    min_new_tokens: int = Field(0, ge=0, description="fewest tokens before the end symbol")
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        (), strict=False, description="texts at which an answer ends; none of them is part of it"
    )

    @model_validator(mode="after")
    def _room_for_the_shortest(self) -> "SamplingConfig":
        if self.min_new_tokens >= self.max_new_tokens:
            raise ValueError(
                "expected decoding.min_new_tokens below decoding.max_new_tokens,"
                f" found {self.min_new_tokens} and {self.max_new_tokens}; change one of them"
            )
        return self
