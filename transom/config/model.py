"""The schema of a model: a few validated numbers and the kinds of its bricks."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from transom.config.brick import Brick
from transom.config.bricks import (
    FeedForward,
    FeedForwardNetwork,
    Gated,
    LayerNorm,
    Learned,
    MultiHead,
    Norm,
    Position,
    RmsNorm,
    Rotary,
    Sinusoidal,
)

Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]

Placement = Literal["post", "pre", "sandwich", "parallel"]
_PLACEMENT = (
    "after the residual sum (2017), before each sub-layer, both before it and after it, or once for attention and feed-forward side by side"
)

MAX_POSITION_TABLE = 2**28
"""Most numbers in a table of positions; no file vouches for its size, as weights do for the other sizes."""


class Transformer(Brick):
    """What all families share: the widths and the bricks of a block."""

    VOCABULARIES: ClassVar[tuple[str, ...]] = ()
    """The fields that the tokenizer fills in."""

    FROM_DATA: ClassVar[tuple[str, ...]] = ()
    """The fields that the data fill in."""

    kind: str
    d_model: int = Field(512, ge=1, description="width of the residual stream")
    n_heads: int = Field(8, ge=1, description="attention heads a layer")
    n_kv_heads: int | None = Field(
        None, ge=1, description="heads of keys and values, each shared by n_heads / n_kv_heads query heads; default n_heads"
    )
    d_head: int | None = Field(None, ge=1, description="width of a query and key (the paper's d_k); default d_model / n_heads")
    d_value: int | None = Field(None, ge=1, description="width of a value (the paper's d_v); default d_head")
    d_ff: int = Field(2048, ge=1, description="hidden width of the feed-forward network")
    max_seq_len: int = Field(512, ge=2, description="longest sequence in tokens, special tokens included")
    dropout: Fraction = Field(0.1, description="on the embeddings and on each sub-layer's output, as in the paper")
    attention_dropout: Fraction = Field(0.0, description="on the attention weights")
    feed_forward_dropout: Fraction = Field(0.0, description="on the feed-forward hidden units")
    norm: Norm = Field(LayerNorm(), description="the normalisation brick")
    norm_placement: Placement = Field("post", description=_PLACEMENT)
    position: Position = Field(Sinusoidal(), description="the position brick")
    attention: MultiHead = Field(MultiHead(), description="the attention brick")
    feed_forward: FeedForwardNetwork = Field(FeedForward(), description="the feed-forward brick")
    scale_embeddings: bool = Field(True, description="multiply embeddings by sqrt(d_model)")

    @model_validator(mode="after")
    def _shapes_fit(self) -> "Transformer":
        if self.d_head is None and self.d_model % self.n_heads:
            raise ValueError(f"d_model {self.d_model} is not a multiple of n_heads {self.n_heads}; change one of them or set d_head")
        if self.n_heads % self.key_heads:
            raise ValueError(f"n_heads {self.n_heads} is not a multiple of n_kv_heads {self.key_heads}; change one of them")
        width = {"sinusoidal": self.d_model, "learned": self.d_model, "rotary": self.width_turned}.get(self.position.kind, 0)
        if self.max_seq_len * width > MAX_POSITION_TABLE:
            raise ValueError(
                f"expected a table of {self.position.kind} positions of at most {MAX_POSITION_TABLE} numbers,"
                f" found max_seq_len {self.max_seq_len} * {width}; lower max_seq_len"
            )
        if self.position.kind == "rotary" and self.width_turned < 2:
            raise ValueError(
                "position.kind = 'rotary' needs at least 2 columns a head that are turned, found"
                f" {self.width_turned}; raise d_head or position.share"
            )
        if not self.attention.output and self.n_heads * self.width_of_value != self.d_model:
            raise ValueError(
                f"attention.output = false needs n_heads * d_value = d_model, found"
                f" {self.n_heads} * {self.width_of_value} and {self.d_model}"
            )
        return self

    @property
    def key_heads(self) -> int:
        """Heads of keys and values."""
        return self.n_kv_heads or self.n_heads

    @property
    def width_of_head(self) -> int:
        """d_k, the width of one head's queries and keys."""
        return self.d_head or self.d_model // self.n_heads

    @property
    def width_of_value(self) -> int:
        """d_v, the width of one head's values."""
        return self.d_value or self.width_of_head

    @property
    def width_turned(self) -> int:
        """How many columns of a head rotary positions turn: an even number."""
        return int(self.width_of_head * self.position.share) // 2 * 2 if self.position.kind == "rotary" else 0


class Seq2Seq(Transformer):
    """The encoder-decoder Transformer of 2017."""

    VOCABULARIES: ClassVar[tuple[str, ...]] = ("source_vocab_size", "target_vocab_size")

    kind: Literal["seq2seq"] = "seq2seq"
    n_encoder_layers: int = Field(6, ge=1, le=1000, description="blocks in the encoder")
    n_decoder_layers: int = Field(6, ge=1, le=1000, description="blocks in the decoder")
    source_vocab_size: int | None = Field(None, ge=1, description="rows of the source embedding; set from the tokenizer")
    target_vocab_size: int | None = Field(None, ge=1, description="rows of the target embedding; set from the tokenizer")
    tie: Literal["all", "decoder", "none"] = Field(
        "all",
        description="share one matrix: source, target and output (all, needs a joint vocabulary), target and output (decoder), or nothing",
    )

    @model_validator(mode="after")
    def _one_table_has_one_size(self) -> "Seq2Seq":
        if self.tie == "all" and self.source_vocab_size != self.target_vocab_size:
            raise ValueError(
                f"tie = 'all' needs one joint vocabulary, found {self.source_vocab_size} source and"
                f" {self.target_vocab_size} target symbols;"
                " set tokenizer.joint = true or tie = 'decoder'"
            )
        return self


class Decoder(Transformer):
    """A language model: a decoder without a source, as GPT (Radford et al. 2018) and Llama (Touvron et al. 2023) are.

    The defaults are Llama's: RMSNorm before each sub-layer, rotary positions, SwiGLU.
    """

    VOCABULARIES: ClassVar[tuple[str, ...]] = ("vocab_size",)

    kind: Literal["decoder"] = "decoder"
    n_layers: int = Field(6, ge=1, le=1000, description="blocks")
    vocab_size: int | None = Field(None, ge=1, description="rows of the embedding; set from the tokenizer")
    tie: bool = Field(True, description="share one matrix between the embedding and the output map")
    norm: Norm = Field(RmsNorm(), description="the normalisation brick")
    norm_placement: Placement = Field("pre", description=_PLACEMENT)
    position: Position = Field(Rotary(), description="the position brick")
    feed_forward: FeedForwardNetwork = Field(Gated(kind="swiglu"), description="the feed-forward brick")
    scale_embeddings: bool = Field(False, description="multiply embeddings by sqrt(d_model)")


class Encoder(Transformer):
    """An encoder alone, as BERT (Devlin et al. 2019): every token sees its whole text. The defaults are BERT's bricks."""

    VOCABULARIES: ClassVar[tuple[str, ...]] = ("vocab_size",)

    n_layers: int = Field(6, ge=1, le=1000, description="blocks")
    vocab_size: int | None = Field(None, ge=1, description="rows of the embedding but the mask's; set from the tokenizer")
    embedding_norm: bool = Field(True, description="a norm behind the sum of embeddings and positions")
    position: Position = Field(Learned(), description="the position brick")
    feed_forward: FeedForwardNetwork = Field(FeedForward(kind="gelu"), description="the feed-forward brick")
    scale_embeddings: bool = Field(False, description="multiply embeddings by sqrt(d_model)")


class MaskedEncoder(Encoder):
    """An encoder that names the tokens behind masks."""

    kind: Literal["encoder"] = "encoder"
    tie: bool = Field(True, description="share one matrix between the embedding and the output map")


class TextClassifier(Encoder):
    """An encoder that names the class of a text."""

    FROM_DATA: ClassVar[tuple[str, ...]] = ("classes",)

    kind: Literal["text-classifier"] = "text-classifier"
    classes: tuple[Annotated[str, Field(min_length=1)], ...] = Field((), strict=False, description="the classes; set from the data")
    pool: Literal["start", "mean"] = Field(
        "mean", description="what is classified: the vector of the start symbol, as BERT's, or the mean of all"
    )
    pooler_dropout: Fraction = Field(0.1, description="on the pooled vector")


class TextEmbedder(Encoder):
    """An encoder that gives texts vectors, near to each other for texts that belong together."""

    kind: Literal["text-embedder"] = "text-embedder"
    temperature: float = Field(0.05, gt=0, le=10, description="cosines are divided by it before their softmax (Gao et al. 2021, eq. 1)")


Model = Annotated[Seq2Seq | Decoder | MaskedEncoder | TextClassifier | TextEmbedder, Field(discriminator="kind")]
"""Any family's schema, told apart by ``kind``."""
