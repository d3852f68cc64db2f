"""Schemas of text Transformers, and the unions of all models."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from transom.config.architecture import (
    NORM_PLACEMENT_HELP,
    EncoderDecoderConfig,
    Fraction,
    ModelConfig,
    NormPlacement,
    TextModelConfig,
    TransformerConfig,
    VocabularyModelConfig,
)
from transom.config.component_registry import register_component
from transom.config.components import (
    AnyFeedForward,
    AnyNorm,
    AnyPosition,
    FeedForwardConfig,
    GatedFeedForwardConfig,
    LearnedPositionConfig,
    RmsNormConfig,
    RotaryConfig,
    SinusoidalConfig,
)
from transom.config.patterns import pattern_kinds
from transom.config.recurrent import RecurrentDecoderConfig, RecurrentSeq2SeqConfig
from transom.config.schema import ComponentConfig, Slot, derived_default
from transom.config.vision import ConvolutionalNetworkConfig, VisionTransformerConfig
from transom.files.limits import MAX_LAYERS, MAX_POSITION_TABLE_SIZE


class TextTransformerConfig(TransformerConfig, TextModelConfig):
    """Base schema of text Transformers."""

    position: AnyPosition = Field(SinusoidalConfig(), description="the position component")
    scale_embeddings: bool = Field(True, description="multiply embeddings by sqrt(d_model)")
    embedding_norm: bool = Field(False, description="a norm after the sum of embeddings and positions; on both sides of an encoder-decoder")

    @model_validator(mode="after")
    def _positions_fit(self) -> "TextTransformerConfig":
        if self.position_table > MAX_POSITION_TABLE_SIZE:
            raise ValueError(
                f"expected a table of {self.position.kind} positions of at most {MAX_POSITION_TABLE_SIZE} numbers,"
                f" found max_seq_len {self.max_seq_len} * {self.position_table // self.max_seq_len}; lower max_seq_len"
            )
        return self

    @model_validator(mode="after")
    def _has_no_rows_and_columns(self) -> "TextTransformerConfig":
        if "window-2d" in pattern_kinds(self.attention.pattern):
            raise ValueError("attention.pattern: expected a pattern for text, found 'window-2d', which is for images; use 'window'")
        return self

    @property
    def n_positions(self) -> int:
        """Number of positions: the maximum sequence length."""
        return self.max_seq_len


class Seq2SeqConfig(TextTransformerConfig, EncoderDecoderConfig):
    """The encoder-decoder Transformer (Vaswani et al. 2017)."""

    CAUSAL: ClassVar[bool] = True
    FAMILY: ClassVar[str] = "an encoder-decoder Transformer"

    kind: Literal["seq2seq"] = "seq2seq"
    decoder_n_heads: int = derived_default(
        lambda fields: fields["n_heads"], "n_heads", "attention heads per decoder layer; d_head, d_value and n_kv_heads are scaled to them"
    )
    decoder_d_ff: int = derived_default(
        lambda fields: fields["d_ff"], "d_ff", "hidden dimension of the feed-forward network in the decoder"
    )

    @model_validator(mode="after")
    def _decoder_heads_fit(self) -> "Seq2SeqConfig":
        n = self.decoder_n_heads
        if n == self.n_heads:
            return self
        if self._d_head_divides and self.d_model % n:
            raise ValueError(f"d_model {self.d_model} is not a multiple of decoder_n_heads {n}; change one of them or set d_head")
        if self.n_kv_heads * n % self.n_heads:
            raise ValueError(
                f"expected decoder_n_heads * n_kv_heads / n_heads to be a whole number, the decoder's heads of keys and values, found {n} *"
                f" {self.n_kv_heads} / {self.n_heads}; change one of them"
            )
        decoder = self.of_stack("decoder")
        if self.position.kind == "rotary" and decoder.rotary_dim < 2:
            raise ValueError(
                f"position.kind = 'rotary' needs at least 2 rotated dimensions per head, found {decoder.rotary_dim} in the decoder; lower"
                " decoder_n_heads"
            )
        if not self.attention.output_projection and n * decoder.d_value != self.d_model:
            raise ValueError(
                f"attention.output_projection = false needs decoder_n_heads * d_value = d_model, found {n} * {decoder.d_value} and"
                f" {self.d_model}; change one of them or set attention.output_projection = true"
            )
        return self

    @property
    def _d_head_divides(self) -> bool:
        """Whether the heads divide d_model among themselves, so that the decoder's are wider if they are fewer."""
        return self.d_head * self.n_heads == self.d_model

    def of_stack(self, stack: str) -> "Seq2SeqConfig":
        """Return the configuration of one stack; that of the decoder has its heads and feed-forward width as n_heads and d_ff."""
        n = self.decoder_n_heads
        if stack != "decoder" or (n, self.decoder_d_ff) == (self.n_heads, self.d_ff):
            return self
        d_head = self.d_model // n if self._d_head_divides else self.d_head
        d_value = d_head if self.d_value == self.d_head else self.d_value
        heads = {"n_heads": n, "n_kv_heads": self.n_kv_heads * n // self.n_heads, "d_head": d_head, "d_value": d_value}
        return self.model_copy(update=heads | {"d_ff": self.decoder_d_ff})


AnyMask = Annotated[ComponentConfig, Slot("mask")]


@register_component("mask")
class CausalMaskConfig(ComponentConfig):
    """Each token attends to itself and earlier tokens (Radford et al. 2018): j <= i.

    Cost and use: Every token contributes to the loss; the default.
    """

    kind: Literal["causal"] = "causal"


@register_component("mask")
class PrefixMaskConfig(ComponentConfig):
    """Bidirectional attention within a prefix, causal after it (Raffel et al. 2020, section 3.2.1): j <= i or j in the prefix.

    The batch marks the prefix: for an instruction, the prompt up to the start-of-answer token. Plain text has no prefix, so its mask is
    causal. When a text is continued, its prompt without the last token is the prefix, processed in one pass.

    Cost and use: Free. Prompts are encoded bidirectionally; for instructions, where only answer tokens contribute to the loss. Cannot be
    combined with approximated attention.
    """

    kind: Literal["prefix-lm"] = "prefix-lm"


class DecoderConfig(TextTransformerConfig, VocabularyModelConfig):
    """A decoder-only language model, such as GPT (Radford et al. 2018) and Llama (Touvron et al. 2023).

    The defaults are Llama's: RMSNorm before each sub-layer, rotary positions, SwiGLU.
    """

    VOCABULARIES: ClassVar[tuple[str, ...]] = ("vocab_size",)
    CAUSAL: ClassVar[bool] = True
    FAMILY: ClassVar[str] = "a decoder-only Transformer"
    STACK: ClassVar[str] = "a decoder"

    kind: Literal["decoder"] = "decoder"
    n_layers: int = Field(6, ge=1, le=MAX_LAYERS, description="blocks")
    vocab_size: int | None = Field(None, ge=1, description="rows of the embedding; set from the tokenizer")
    tie_embeddings: bool = Field(True, description="share the matrix of the embedding and the output projection")
    norm: AnyNorm = Field(RmsNormConfig(), description="the normalization component")
    norm_placement: NormPlacement = Field("pre", description=NORM_PLACEMENT_HELP)
    position: AnyPosition = Field(RotaryConfig(), description="the position component")
    feed_forward: AnyFeedForward = Field(GatedFeedForwardConfig(kind="swiglu"), description="the feed-forward component")
    scale_embeddings: bool = Field(False, description="multiply embeddings by sqrt(d_model)")
    mask: AnyMask = Field(CausalMaskConfig(), description="tokens to which each token may attend; attention.pattern restricts them further")

    @model_validator(mode="after")
    def _approximations_look_back(self) -> "DecoderConfig":
        if self.mask.kind != "causal" and self.attention.approximation.kind != "none":
            raise ValueError(
                f"attention.approximation = {self.attention.approximation.kind!r} keeps sums over earlier tokens:"
                f" expected mask = 'causal', found {self.mask.kind!r}; change one of them"
            )
        return self


class EncoderConfig(TextTransformerConfig):
    """An encoder-only Transformer (Devlin et al. 2019), with the components of BERT as defaults."""

    VOCABULARIES: ClassVar[tuple[str, ...]] = ("vocab_size",)
    STACK: ClassVar[str] = "an encoder"

    n_layers: int = Field(6, ge=1, le=MAX_LAYERS, description="blocks")
    vocab_size: int | None = Field(
        None, ge=1, description="rows of the embedding, without an additional row for the mask token; set from the tokenizer"
    )
    mask_token_id: int | None = Field(None, ge=0, description="mask token; default vocab_size, which adds a row to the embedding")
    n_token_types: int = Field(
        0, ge=0, le=65536, description="rows of the token type embedding, added to each token (BERT: 2, for pairs of texts); 0 for none"
    )
    embedding_norm: bool = Field(True, description="a norm after the sum of embeddings and positions")
    position: AnyPosition = Field(LearnedPositionConfig(), description="the position component")
    feed_forward: AnyFeedForward = Field(FeedForwardConfig(kind="gelu"), description="the feed-forward component")
    scale_embeddings: bool = Field(False, description="multiply embeddings by sqrt(d_model)")

    @model_validator(mode="after")
    def _mask_is_a_token(self) -> "EncoderConfig":
        if self.mask_token_id is not None and self.vocab_size is not None and self.mask_token_id > self.vocab_size:
            raise ValueError(
                f"mask_token_id: expected at most vocab_size, {self.vocab_size}, found {self.mask_token_id}; lower mask_token_id"
            )
        return self

    @property
    def n_embeddings(self) -> int:
        """Rows of the embedding, including that of the mask token."""
        assert self.vocab_size, "the vocabulary size comes from the tokenizer"
        return self.vocab_size + (self.mask_token_id in (None, self.vocab_size))


class MaskedLMConfig(EncoderConfig, VocabularyModelConfig):
    """An encoder that predicts masked tokens."""

    FAMILY: ClassVar[str] = "an encoder-only Transformer for masked tokens"

    kind: Literal["encoder"] = "encoder"
    tie_embeddings: bool = Field(True, description="share the matrix of the embedding and the output projection")
    head_activation: Literal["gelu", "gelu-tanh", "relu", "silu"] = Field(
        "gelu", description="activation between the dense layer and the norm before the output projection"
    )

    @property
    def n_logits(self) -> int:
        """Number of logits per token: one per row of the embedding."""
        return self.n_embeddings


class TextClassifierConfig(EncoderConfig):
    """An encoder that classifies texts."""

    FROM_DATA: ClassVar[tuple[str, ...]] = ("classes", "multi_label")
    FAMILY: ClassVar[str] = "an encoder-only Transformer for classes of texts"

    kind: Literal["text-classifier"] = "text-classifier"
    classes: tuple[Annotated[str, Field(min_length=1)], ...] = Field((), strict=False, description="the classes; set from the data")
    pooling: Literal["cls", "mean"] = Field(
        "mean", description="vector to classify: that of the start token, as in BERT, or the mean over all tokens"
    )
    pooler: bool = Field(True, description="a dense layer and an activation between the pooled vector and the output layer, as in BERT")
    pooler_activation: Literal["tanh", "relu", "gelu"] = Field("tanh", description="activation after the pooler's dense layer")
    pooler_input_dropout: Fraction = Field(0.0, description="dropout on the pooled vector before the pooler, as in RoBERTa")
    pooler_dropout: Fraction = Field(0.1, description="dropout on the vector before the output layer")
    multi_label: bool = Field(
        False,
        description="whether a text has any number of labels, each with its own probability, instead of one class; set from the data",
    )


class TextEmbedderConfig(EncoderConfig):
    """An encoder that embeds texts, trained so that the texts of a pair have similar vectors."""

    FAMILY: ClassVar[str] = "an encoder-only Transformer for vectors of texts"

    kind: Literal["text-embedder"] = "text-embedder"
    pooling: Literal["cls", "mean"] = Field("mean", description="vector of a text: that of the start token, or the mean over all tokens")
    temperature: float = Field(
        0.05, gt=0, le=10, description="temperature of the softmax over cosine similarities (Gao et al. 2021, eq. 1)"
    )

    @property
    def n_logits(self) -> int:
        """Number of logits: 0, since the model outputs vectors."""
        return 0

    @model_validator(mode="after")
    def _vectors_have_no_logits(self) -> "TextEmbedderConfig":
        if self.head_bias:
            raise ValueError("head_bias: expected false, found true: a text embedder has no output layer; remove head_bias")
        return self


AnyModel = Annotated[ModelConfig, Slot("model", ModelConfig)]
AnySeq2SeqModel = Annotated[Seq2SeqConfig | RecurrentSeq2SeqConfig, Slot("pair_model", ModelConfig)]
AnyLanguageModel = Annotated[DecoderConfig | RecurrentDecoderConfig, Slot("language_model", ModelConfig)]
AnyImageModel = Annotated[VisionTransformerConfig | ConvolutionalNetworkConfig, Slot("image_model", ModelConfig)]
"""Unions of all models, and of the models for translation, text generation and image classification.

Type checkers see the packaged models; models of plugins are accepted too.
"""

register_component("model", "pair_model")(Seq2SeqConfig)
register_component("model", "pair_model")(RecurrentSeq2SeqConfig)
register_component("model", "language_model")(DecoderConfig)
register_component("model", "language_model")(RecurrentDecoderConfig)
register_component("model")(MaskedLMConfig)
register_component("model")(TextClassifierConfig)
register_component("model")(TextEmbedderConfig)
register_component("model", "image_model")(VisionTransformerConfig)
register_component("model", "image_model")(ConvolutionalNetworkConfig)
