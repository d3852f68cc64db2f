"""Schemas of decoding and inference settings."""

from typing import Annotated

from pydantic import Field, model_validator

from transom.config.schema import Schema


class BeamSearchConfig(Schema):
    """Settings of beam search, in validation and by default in inference."""

    beam_size: int = Field(5, ge=1, le=1024, description="hypotheses per sentence; 1 is greedy search")
    length_penalty: float = Field(
        0.6, ge=0, le=10, description="GNMT's alpha: scores are divided by ((5 + length) / 6)^alpha (Wu et al. 2016, eq. 14)"
    )
    min_length: int = Field(0, ge=0, description="minimum number of tokens before the end-of-sequence token")
    max_length: int = Field(256, ge=1, description="maximum number of target tokens, including the end-of-sequence token")
    max_length_ratio: float = Field(3.0, gt=0, description="maximum number of target tokens per source token, plus ten")

    @model_validator(mode="after")
    def _room_for_the_shortest(self) -> "BeamSearchConfig":
        if self.min_length >= self.max_length:
            raise ValueError(
                f"expected decoding.min_length below decoding.max_length, found {self.min_length} and {self.max_length}; change one of them"
            )
        return self


class TextInferenceConfig(Schema):
    """Inference settings of an encoder."""

    batch_tokens: int = Field(8192, ge=1, description="maximum tokens per batch, padding included; a longer text forms its own batch")


class ImageInferenceConfig(Schema):
    """Inference settings of an image classifier."""

    batch_size: int = Field(256, ge=1, description="images per batch")


class SamplingConfig(Schema):
    """Sampling settings of a language model."""

    temperature: float = Field(1.0, ge=0, description="divisor of the logits; 0 selects the most probable token")
    top_k: int | None = Field(None, ge=1, description="keep the k most probable tokens (Fan et al. 2018)")
    top_p: float | None = Field(
        None, gt=0, le=1, description="keep the most probable tokens up to this total probability (Holtzman et al. 2020)"
    )
    min_p: float | None = Field(
        None, ge=0, le=1, description="keep tokens with at least this fraction of the highest probability (Nguyen et al. 2024)"
    )
    typical_p: float | None = Field(
        None,
        gt=0,
        le=1,
        description="keep tokens up to this total probability, those with surprisal nearest the entropy first (Meister et al. 2023)",
    )
    repetition_penalty: float = Field(
        1.0, gt=0, le=100, description="multiplies log p of the tokens of prompt and output (after Keskar et al. 2019)"
    )
    frequency_penalty: float = Field(0.0, ge=-100, le=100, description="subtracted from a token's log p for each time it was generated")
    presence_penalty: float = Field(0.0, ge=-100, le=100, description="subtracted from a token's log p if it was generated before")
    early_exit_threshold: float = Field(
        1.0,
        ge=0,
        le=1,
        description="a token exits after the first block at which the two highest probabilities of the next token differ by at least this"
        " (Schuster et al. 2022); 1 uses all blocks; for models trained with training.early_exit_loss",
    )
    seed: int = Field(1, ge=0, lt=2**63, description="seed of the samples")
    max_new_tokens: int = Field(256, ge=1, description="maximum number of sampled tokens, without the end-of-sequence token")
    min_new_tokens: int = Field(0, ge=0, description="minimum number of tokens before the end-of-sequence token")
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        (), strict=False, description="texts that end the output; they are not part of it"
    )

    @model_validator(mode="after")
    def _room_for_the_shortest(self) -> "SamplingConfig":
        if self.min_new_tokens >= self.max_new_tokens:
            raise ValueError(
                "expected decoding.min_new_tokens below decoding.max_new_tokens,"
                f" found {self.min_new_tokens} and {self.max_new_tokens}; change one of them"
            )
        return self
