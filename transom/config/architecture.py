"""Base schemas of all models and of all Transformers."""

from abc import abstractmethod
from typing import Annotated, Any, ClassVar, Literal, Self, get_origin

from pydantic import Field, model_validator

from transom.config import moe  # noqa: F401  # registers a feed-forward network
from transom.config.components import (
    AnyAttention,
    AnyFeedForward,
    AnyNorm,
    FeedForwardConfig,
    LayerNormConfig,
    MultiHeadAttentionConfig,
    PositionConfig,
    RotaryConfig,
)
from transom.config.depth import AnyDepth, FullDepthConfig
from transom.config.rope_scaling import LongRopeScalingConfig
from transom.config.schema import ComponentConfig, derived_default
from transom.files.limits import MAX_LAYERS

Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]

NormPlacement = Literal["post", "pre", "sandwich", "parallel", "parallel-separate"]
NORM_PLACEMENT_HELP = (
    "after the residual sum (2017), before each sub-layer, both before it and after it, once for attention and feed-forward side by"
    " side, or a norm for each of these"
)


class ModelConfig(ComponentConfig):
    """Base schema of all models."""

    VOCABULARIES: ClassVar[tuple[str, ...]] = ()
    """Names of the fields that are set to the vocabulary sizes of the tokenizers."""

    FROM_DATA: ClassVar[tuple[str, ...]] = ()
    """Names of the fields that are set from the training data, such as ``classes``; empty or false before."""

    FAMILY: ClassVar[str]
    """Kind of model in reports, such as "an encoder-decoder Transformer"."""

    STACK: ClassVar[str] = "a stack"
    """Name, in reports, of the stack whose number of layers is ``n_layers``."""

    d_model: int = Field(512, ge=1, description="dimension of the hidden states")
    head_bias: bool = Field(False, description="bias of the output layer")

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        """Raise if a subclass with a ``kind`` does not define FAMILY, which reports need after training."""
        super().__pydantic_init_subclass__(**options)
        if get_origin(cls.model_fields["kind"].annotation) is Literal and "FAMILY" not in vars(cls):
            raise TypeError(f"{cls.__name__}: expected the class attribute FAMILY, the name of this kind of model in reports, found none")

    @property
    def n_logits(self) -> int:
        """Number of logits per position: the number of classes, or the size of the last vocabulary."""
        found: int | tuple[str, ...] | None = getattr(self, "classes" if "classes" in self.FROM_DATA else self.VOCABULARIES[-1])
        assert found is not None, "the vocabulary sizes come from the tokenizer"
        return found if isinstance(found, int) else len(found)

    @property
    def stacks(self) -> tuple[int, ...]:
        """Number of layers of each stack, such as (6, 6) for an encoder-decoder."""
        return tuple(getattr(self, name) for name in ("n_encoder_layers", "n_decoder_layers", "n_layers") if hasattr(self, name))

    @property
    def described_layers(self) -> str:
        """Layers of each stack, for reports, such as "an encoder of 6 layers, a decoder of 6 layers"."""
        names = {"n_encoder_layers": "an encoder", "n_decoder_layers": "a decoder", "n_layers": self.STACK}
        stacks = zip((name for field, name in names.items() if hasattr(self, field)), self.stacks, strict=True)
        return ", ".join(f"{name} of {n} layer{'' if n == 1 else 's'}" for name, n in stacks) or "no stack of layers"

    @property
    def described_inputs(self) -> list[str]:
        """Lines on the model's input, for reports."""
        return []


class TextModelConfig(ModelConfig):
    """Base schema of text models."""

    max_seq_len: int = Field(512, ge=2, description="longest sequence in tokens, special tokens included")
    pad_token_id: int | None = Field(
        None, ge=0, description="padding token of inputs passed to the model without an attention mask; default: no padding"
    )

    @property
    def described_inputs(self) -> list[str]:
        return [f"sequences of at most {self.max_seq_len:,} tokens"]


class VocabularyModelConfig(TextModelConfig):
    """Base schema of models whose logits belong to the tokens of a vocabulary."""

    logit_scale: float = Field(
        1.0, gt=0, description="factor of the logits, such as d_model^-0.5 beside tied embeddings (Raffel et al. 2020); 1 for none"
    )
    logit_softcap: float | None = Field(
        None, gt=0, description="c of c * tanh(logits / c), after logit_scale (Gemma Team 2024); the fused loss does not support it"
    )


class EncoderDecoderConfig(VocabularyModelConfig):
    """Base schema of encoder-decoder models."""

    VOCABULARIES: ClassVar[tuple[str, ...]] = ("source_vocab_size", "target_vocab_size")

    n_encoder_layers: int = Field(6, ge=1, le=MAX_LAYERS, description="layers of the encoder")
    n_decoder_layers: int = Field(6, ge=1, le=MAX_LAYERS, description="layers of the decoder")
    source_vocab_size: int | None = Field(None, ge=1, description="rows of the source embedding; set from the tokenizer")
    target_vocab_size: int | None = Field(None, ge=1, description="rows of the target embedding; set from the tokenizer")
    tie_embeddings: Literal["all", "decoder", "inputs", "none"] = Field(
        "all",
        description="share one matrix: source, target and output (all, needs a joint vocabulary), target and output (decoder), source and"
        " target (inputs, needs a joint vocabulary; T5 v1.1), or nothing",
    )

    @property
    def ties_inputs(self) -> bool:
        """Whether source and target share the matrix of their embeddings."""
        return self.tie_embeddings in ("all", "inputs")

    @property
    def ties_output(self) -> bool:
        """Whether target embedding and output projection share one matrix."""
        return self.tie_embeddings in ("all", "decoder")

    @model_validator(mode="after")
    def _one_table_has_one_size(self) -> Self:
        if self.ties_inputs and self.source_vocab_size != self.target_vocab_size:
            raise ValueError(
                f"tie_embeddings = {self.tie_embeddings!r} needs one joint vocabulary, found {self.source_vocab_size} source and"
                f" {self.target_vocab_size} target symbols;"
                " set tokenizer.joint = true or tie_embeddings = 'decoder'"
            )
        return self


class TransformerConfig(ModelConfig):
    """Base schema of Transformers: dimensions and components of a block."""

    CAUSAL: ClassVar[bool] = False
    """Whether the model has a decoder with a causal mask."""

    n_heads: int = Field(8, ge=1, description="attention heads per layer")
    n_kv_heads: int = derived_default(
        lambda fields: fields["n_heads"], "n_heads", "heads of keys and values, each shared by n_heads / n_kv_heads query heads"
    )
    d_head: int = derived_default(
        lambda fields: max(1, fields["d_model"] // fields["n_heads"]),
        "d_model / n_heads",
        "dimension of a query and key (d_k in the paper)",
    )
    d_value: int = derived_default(lambda fields: fields["d_head"], "d_head", "dimension of a value (d_v in the paper)")
    d_ff: int = Field(2048, ge=1, description="hidden dimension of the feed-forward network")
    dropout: Fraction = Field(0.1, description="dropout on the embeddings and each sub-layer's output, as in the paper")
    attention_dropout: Fraction = Field(0.0, description="dropout on the attention weights")
    feed_forward_dropout: Fraction = Field(0.0, description="dropout on the hidden units of the feed-forward network")
    norm: AnyNorm = Field(LayerNormConfig(), description="the normalization component")
    norm_placement: NormPlacement = Field("post", description=NORM_PLACEMENT_HELP)
    position: PositionConfig
    attention: AnyAttention = Field(MultiHeadAttentionConfig(), description="the attention component")
    feed_forward: AnyFeedForward = Field(FeedForwardConfig(), description="the feed-forward component")
    depth: AnyDepth = Field(FullDepthConfig(), description="routing over depth: the tokens that each block processes")

    @model_validator(mode="after")
    def _shapes_fit(self) -> "TransformerConfig":
        if "d_head" not in self.model_fields_set and self.d_model % self.n_heads:
            raise ValueError(f"d_model {self.d_model} is not a multiple of n_heads {self.n_heads}; change one of them or set d_head")
        if self.n_heads % self.n_kv_heads:
            raise ValueError(f"n_heads {self.n_heads} is not a multiple of n_kv_heads {self.n_kv_heads}; change one of them")
        if self.position.kind == "rotary" and self.rotary_dim < 2:
            raise ValueError(
                "position.kind = 'rotary' needs at least 2 rotated dimensions per head, found"
                f" {self.rotary_dim}; raise d_head or position.partial_rotary_factor"
            )
        if isinstance(self.position, RotaryConfig):
            for _, scaling in self.position.rotations:
                if isinstance(scaling, LongRopeScalingConfig) and 2 * len(scaling.short_factor) != self.rotary_dim:
                    raise ValueError(
                        "position.rope_scaling: expected short_factor and long_factor with one number per rotated pair,"
                        f" {self.rotary_dim // 2}, found {len(scaling.short_factor)}; change the lists or the rotated width"
                    )
        if not self.attention.output_projection and self.n_heads * self.d_value != self.d_model:
            raise ValueError(
                f"attention.output_projection = false needs n_heads * d_value = d_model, found"
                f" {self.n_heads} * {self.d_value} and {self.d_model}; change one of them or set attention.output_projection = true"
            )
        return self

    @model_validator(mode="after")
    def _approximations_fit(self) -> "TransformerConfig":
        component = self.attention.approximation
        if component.kind == "none":
            return self
        named = f"attention.approximation = {component.kind!r}"
        if self.CAUSAL and not component.CAUSAL:
            raise ValueError(f"{named} is not causal and works in encoders only; use 'linear' or 'performer'")
        if self.position.BIASES:
            raise ValueError(
                f"{named} computes no attention scores, to which position = {self.position.kind!r} adds a bias; use another position"
            )
        if self.attention_dropout:
            raise ValueError(f"{named} computes no attention weights: expected attention_dropout = 0, found {self.attention_dropout:g}")
        if self.depth.kind != "full":
            raise ValueError(f"{named} cannot mask the tokens that depth = {self.depth.kind!r} skips; change one of them")
        return self

    @model_validator(mode="after")
    def _depths_fit(self) -> "TransformerConfig":
        if self.depth.kind != "full" and self.feed_forward.kind == "moe":
            raise ValueError("depth.kind = 'mod' cannot be combined with feed_forward.kind = 'moe'; change one of them")
        if self.depth.routed(0) and self.attention.value_residual.kind != "none":
            raise ValueError(
                "attention.value_residual requires that the first block process every token: expected depth.every > 1, found 1; raise"
                " depth.every or remove attention.value_residual"
            )
        return self

    @property
    @abstractmethod
    def n_positions(self) -> int:
        """Maximum number of positions of a sequence: tokens of a text, or patches and classification token of an image."""

    def of_stack(self, stack: str) -> "TransformerConfig":
        """Return the configuration of one stack, "encoder" or "decoder", whose heads and feed-forward width may be its own."""
        return self

    @property
    def position_table(self) -> int:
        """Number of values in the position table of a stack, learned or computed."""
        if isinstance(self.position, RotaryConfig):
            return self.n_positions * self.rotary_dim * len(set(self.position.rotations))
        return self.n_positions * (self.d_model if self.position.kind in ("sinusoidal", "sinusoidal-2d", "learned") else 0)

    @property
    def rotary_dim(self) -> int:
        """Number of dimensions of a head that rotary positions rotate, an even number; 0 for other positions."""
        return self.position.rotary_dim(self.d_head)
