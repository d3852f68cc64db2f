"""The schema of a model: a few validated numbers and the kinds of its bricks."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from transom.config.brick import Brick

Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]

MAX_POSITION_TABLE = 2**28
"""Most numbers in a table of positions; no file vouches for its size, as weights do for the other sizes."""


class LayerNorm(Brick):
    """Layer normalisation (Ba et al. 2016): gamma * (x - mean) / sqrt(variance + eps) + beta."""

    kind: Literal["layernorm"] = "layernorm"
    eps: float = Field(1e-5, gt=0, description="added to the variance before the square root")


class Sinusoidal(Brick):
    """Fixed sines and cosines added to the embeddings (Vaswani et al. 2017, section 3.5)."""

    kind: Literal["sinusoidal"] = "sinusoidal"
    base: float = Field(10000.0, gt=1, description="the longest wavelength is 2 pi times this")


class MultiHead(Brick):
    """Scaled dot-product attention in several heads (Vaswani et al. 2017, section 3.2)."""

    kind: Literal["multihead"] = "multihead"
    bias: bool = Field(True, description="biases on W_Q, W_K and W_V")
    output: bool = Field(True, description="mix the heads with W_O; without it n_heads * d_value must equal d_model")
    output_bias: bool = Field(True, description="a bias on W_O")


class Relu(Brick):
    """Position-wise feed-forward network max(0, x W_1 + b_1) W_2 + b_2 (Vaswani et al. 2017, eq. 2)."""

    kind: Literal["relu"] = "relu"
    bias: bool = Field(True, description="biases on W_1 and W_2")


class Seq2Seq(Brick):
    """The encoder-decoder Transformer of 2017."""

    kind: Literal["seq2seq"] = "seq2seq"
    d_model: int = Field(512, ge=1, description="width of the residual stream")
    n_encoder_layers: int = Field(6, ge=1, le=1000, description="blocks in the encoder")
    n_decoder_layers: int = Field(6, ge=1, le=1000, description="blocks in the decoder")
    n_heads: int = Field(8, ge=1, description="attention heads a layer")
    d_head: int | None = Field(None, ge=1, description="width of a query and key (the paper's d_k); default d_model / n_heads")
    d_value: int | None = Field(None, ge=1, description="width of a value (the paper's d_v); default d_head")
    d_ff: int = Field(2048, ge=1, description="hidden width of the feed-forward network")
    source_vocab_size: int | None = Field(None, ge=1, description="rows of the source embedding; set from the tokenizer")
    target_vocab_size: int | None = Field(None, ge=1, description="rows of the target embedding; set from the tokenizer")
    max_seq_len: int = Field(512, ge=2, description="longest sequence in tokens, special tokens included")
    dropout: Fraction = Field(0.1, description="on the embeddings and on each sub-layer's output, as in the paper")
    attention_dropout: Fraction = Field(0.0, description="on the attention weights")
    feed_forward_dropout: Fraction = Field(0.0, description="on the feed-forward hidden units")
    norm: LayerNorm = Field(LayerNorm(), description="the normalisation brick")
    norm_placement: Literal["post", "pre"] = Field("post", description="after the residual sum (2017) or before each sub-layer")
    position: Sinusoidal = Field(Sinusoidal(), description="the position brick")
    attention: MultiHead = Field(MultiHead(), description="the attention brick")
    feed_forward: Relu = Field(Relu(), description="the feed-forward brick")
    scale_embeddings: bool = Field(True, description="multiply embeddings by sqrt(d_model)")
    tie: Literal["all", "decoder", "none"] = Field(
        "all",
        description="share one matrix: source, target and output (all, needs a joint vocabulary), target and output (decoder), or nothing",
    )

    @model_validator(mode="after")
    def _shapes_fit(self) -> "Seq2Seq":
        if self.d_head is None and self.d_model % self.n_heads:
            raise ValueError(f"d_model {self.d_model} is not a multiple of n_heads {self.n_heads}; change one of them or set d_head")
        if self.max_seq_len * self.d_model > MAX_POSITION_TABLE:
            raise ValueError(
                f"expected max_seq_len * d_model <= {MAX_POSITION_TABLE}, found {self.max_seq_len} * {self.d_model}; lower max_seq_len"
            )
        if not self.attention.output and self.n_heads * self.width_of_value != self.d_model:
            raise ValueError(
                f"attention.output = false needs n_heads * d_value = d_model, found"
                f" {self.n_heads} * {self.width_of_value} and {self.d_model}"
            )
        if self.tie == "all" and self.source_vocab_size != self.target_vocab_size:
            raise ValueError(
                f"tie = 'all' needs one joint vocabulary, found {self.source_vocab_size} source and"
                f" {self.target_vocab_size} target symbols;"
                " set tokenizer.joint = true or tie = 'decoder'"
            )
        return self

    @property
    def width_of_head(self) -> int:
        """d_k, the width of one head's queries and keys."""
        return self.d_head or self.d_model // self.n_heads

    @property
    def width_of_value(self) -> int:
        """d_v, the width of one head's values."""
        return self.d_value or self.width_of_head


Model = Seq2Seq
"""Any family's schema, told apart by ``kind``; a union once there are two."""
