"""The schemas of recurrent networks, which the Transformer took the place of: their cells, their attention, their families."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from transom.config.architecture import EncoderDecoderConfig, Fraction, TextModelConfig
from transom.config.component_registry import register_component
from transom.config.schema import ComponentConfig, Slot, derived_default


class CellConfig(ComponentConfig):
    """Base schema of recurrent cells."""

    N_STATES: ClassVar[int] = 1
    """Number of state vectors passed from step to step."""


AnyCell = Annotated[CellConfig, Slot("cell", CellConfig)]


@register_component("cell")
class RnnConfig(CellConfig):
    """The simple recurrent network (Elman 1990): h_t = tanh(W x_t + U h_{t-1} + b).

    Cost and use: One map a token, a quarter of an LSTM's work; forgets within some ten tokens. To see why the others were made.
    """

    kind: Literal["rnn"] = "rnn"


@register_component("cell")
class LstmConfig(CellConfig):
    """Long short-term memory (Hochreiter & Schmidhuber 1997; with the forget gate of Gers et al. 2000).

    i, f, o = sigmoid(W x_t + U h_{t-1} + b), g = tanh(W_g x_t + U_g h_{t-1} + b_g), c_t = f c_{t-1} + i g, h_t = o tanh(c_t).

    Cost and use: 8 d^2 weights per layer; the cell of the translators of 2014 to 2017, and the fastest of the gated ones here.
    """

    N_STATES: ClassVar[int] = 2

    kind: Literal["lstm"] = "lstm"


@register_component("cell")
class GruConfig(CellConfig):
    """The gated recurrent unit (Cho et al. 2014, eq. 5 to 8): z, r = sigmoid(W x_t + U h_{t-1} + b), h_t = z h_{t-1} + (1 - z) n.

    n = tanh(W_n x_t + b_n + r (U_n h_{t-1} + b)): the reset gate acts after the product, as in PyTorch's kernels; in the paper before.

    Cost and use: 6 d^2 weights per layer, three quarters of an LSTM's, at about its quality.
    """

    kind: Literal["gru"] = "gru"


class SourceAttentionConfig(ComponentConfig):
    """Base schema of attention of a recurrent decoder to its source."""

    def input_feeding_dim(self, d_model: int) -> int:
        """Width of what enters a step beside its token and waits for the attention of this step or of the one before."""
        return 0

    def width(self, d_model: int) -> int:
        """Width in which states are compared; 0 where they are not."""
        return 0


AnySourceAttention = Annotated[SourceAttentionConfig, Slot("source_attention", SourceAttentionConfig)]


@register_component("source_attention")
class NoSourceAttentionConfig(SourceAttentionConfig):
    """None: the decoder starts from the encoder's last states and sees no more of the source (Sutskever et al. 2014).

    Cost and use: The cheapest: two plain recurrences. The whole source must fit into a vector a layer; long sentences suffer.
    """

    kind: Literal["none"] = "none"


@register_component("source_attention")
class AdditiveAttentionConfig(SourceAttentionConfig):
    """Additive attention (Bahdanau et al. 2015, eq. 4 to 6): e_tj = v^T tanh(W s_{t-1} + U h_j), c_t = sum_j softmax(e_t)_j h_j.

    The context enters the cell beside the last token, s_t = f(s_{t-1}, [y_{t-1}; c_t]), and the last vector, of which the logits are a
    map: the larger of each pair of T [s_t; y_{t-1}; c_t]. Appendix A.2.2 prints s_{t-1} there; this is eq. 4. Of several layers the
    last one's state asks, and the context enters the first.

    Cost and use: A step waits for the one before it and takes a tanh a pair of tokens and column: slow, and the best of its time.
    """

    kind: Literal["additive"] = "additive"
    d_attention: int | None = Field(None, ge=1, description="width in which states are compared (the paper's n'); default d_model")

    def input_feeding_dim(self, d_model: int) -> int:
        """Feed the context."""
        return d_model

    def width(self, d_model: int) -> int:
        """Give the paper's n'."""
        return self.d_attention or d_model


@register_component("source_attention")
class LuongAttentionConfig(SourceAttentionConfig):
    """Luong's attention (Luong et al. 2015): c_t = sum_j softmax(score(h_t, h_j))_j h_j, and the last vector tanh(W_c [c_t; h_t]) (eq. 5).

    The score (section 3.1) is h_t^T h_j (dot), h_t^T W h_j (general) or v^T tanh(W h_t + U h_j) (concat).

    Cost and use: Products instead of a tanh a pair; without input feeding the decoder's recurrence is one pass of a fast kernel.
    """

    kind: Literal["luong"] = "luong"
    score: Literal["dot", "general", "concat"] = Field("general", description="how the decoder's state is compared with the source's")
    input_feeding: bool = Field(True, description="the last vector enters the next step beside its token (Luong et al. 2015, section 3.3)")
    d_attention: int | None = Field(None, ge=1, description="width in which states are compared, for concat only; default d_model")

    @model_validator(mode="after")
    def _a_width_needs_concat(self) -> Self:
        if self.d_attention is not None and self.score != "concat":
            raise ValueError(f"expected d_attention with score 'concat' only, found it with {self.score!r}; remove it")
        return self

    def input_feeding_dim(self, d_model: int) -> int:
        """Feed the step before's last vector, where that is wanted."""
        return d_model if self.input_feeding else 0

    def width(self, d_model: int) -> int:
        """Give the width of the states themselves, or of concat's sum."""
        return self.d_attention or d_model


class RecurrentConfig(TextModelConfig):
    """Base schema of recurrent networks: widths and cell."""

    d_embedding: int = derived_default(lambda fields: fields["d_model"], "d_model", "width of the embeddings")
    dropout: Fraction = Field(0.1, description="on the embeddings, between layers and on the last vectors, never from step to step")
    cell: AnyCell = Field(LstmConfig(), description="the cell of the recurrence")

    def refuse_unequal_widths(self) -> None:
        """Refuse to share a matrix between embeddings and an output map of another width."""
        if self.d_embedding != self.d_model:
            raise ValueError(
                f"one matrix for embedding and output needs d_embedding = d_model, found {self.d_embedding} and {self.d_model};"
                " change one of them or untie them"
            )


class RecurrentSeq2SeqConfig(RecurrentConfig, EncoderDecoderConfig):
    """The recurrent encoder-decoder of 2014 to 2016, with attention or without."""

    FAMILY: ClassVar[str] = "a recurrent encoder-decoder"

    kind: Literal["recurrent-seq2seq"] = "recurrent-seq2seq"
    n_encoder_layers: int = Field(1, ge=1, le=1000, description="layers of the encoder")
    n_decoder_layers: int = Field(1, ge=1, le=1000, description="layers of the decoder")
    bidirectional: bool = Field(True, description="half of an encoder layer's columns read the source from its end")
    attention: AnySourceAttention = Field(AdditiveAttentionConfig(), description="how the decoder sees the source")

    @property
    def n_directions(self) -> int:
        """Recurrences of an encoder layer."""
        return 2 if self.bidirectional else 1

    @property
    def encoder_inputs(self) -> list[int]:
        """Input width of each encoder layer."""
        return [self.d_embedding] + [self.d_model] * (self.n_encoder_layers - 1)

    @property
    def decoder_inputs(self) -> list[int]:
        """Input width of each decoder layer."""
        return [self.d_embedding + self.attention.input_feeding_dim(self.d_model)] + [self.d_model] * (self.n_decoder_layers - 1)

    @model_validator(mode="after")
    def _widths_fit(self) -> Self:
        if self.tie_embeddings != "none":
            self.refuse_unequal_widths()
        if self.bidirectional and self.d_model % 2:
            raise ValueError(f"expected an even d_model for the halves of a bidirectional encoder, found {self.d_model}")
        return self


class RecurrentDecoderConfig(RecurrentConfig):
    """A recurrent language model (Mikolov et al. 2010; of LSTMs with dropout between layers, Zaremba et al. 2014)."""

    VOCABULARIES: ClassVar[tuple[str, ...]] = ("vocab_size",)
    FAMILY: ClassVar[str] = "a recurrent network"
    STACK: ClassVar[str] = "a decoder"

    kind: Literal["recurrent-decoder"] = "recurrent-decoder"
    n_layers: int = Field(2, ge=1, le=1000, description="layers")
    vocab_size: int | None = Field(None, ge=1, description="rows of the embedding; set from the tokenizer")
    tie_embeddings: bool = Field(True, description="share one matrix between the embedding and the output map")

    @property
    def inputs(self) -> list[int]:
        """Input width of each layer."""
        return [self.d_embedding] + [self.d_model] * (self.n_layers - 1)

    @model_validator(mode="after")
    def _widths_fit(self) -> Self:
        if self.tie_embeddings:
            self.refuse_unequal_widths()
        return self
