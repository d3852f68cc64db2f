"""Schemas of recurrent networks, the baselines of the Transformer: cells, attention and models."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from transom.config.architecture import EncoderDecoderConfig, Fraction, TextModelConfig, VocabularyModelConfig
from transom.config.component_registry import register_component
from transom.config.schema import ComponentConfig, Slot, derived_default
from transom.files.limits import MAX_LAYERS


class CellConfig(ComponentConfig):
    """Base schema of recurrent cells."""

    N_STATES: ClassVar[int] = 1
    """Number of state vectors passed from step to step."""


AnyCell = Annotated[CellConfig, Slot("cell", CellConfig)]


@register_component("cell")
class RnnConfig(CellConfig):
    """Simple recurrent network (Elman 1990): h_t = tanh(W x_t + U h_{t-1} + b).

    Cost and use: A quarter of the FLOPs of an LSTM; forgets within about ten tokens. For comparison with gated cells.
    """

    kind: Literal["rnn"] = "rnn"


@register_component("cell")
class LstmConfig(CellConfig):
    """Long short-term memory (Hochreiter & Schmidhuber 1997; with the forget gate of Gers et al. 2000).

    i, f, o = sigmoid(W x_t + U h_{t-1} + b), g = tanh(W_g x_t + U_g h_{t-1} + b_g), c_t = f c_{t-1} + i g, h_t = o tanh(c_t).

    Cost and use: 8 d^2 weights per layer; the cell of neural machine translation from 2014 to 2017, and the fastest gated cell here.
    """

    N_STATES: ClassVar[int] = 2

    kind: Literal["lstm"] = "lstm"


@register_component("cell")
class GruConfig(CellConfig):
    """Gated recurrent unit (Cho et al. 2014, eq. 5 to 8): z, r = sigmoid(W x_t + U h_{t-1} + b), h_t = z h_{t-1} + (1 - z) n.

    n = tanh(W_n x_t + b_n + r (U_n h_{t-1} + b)). The reset gate r is applied after the product with U_n, as in PyTorch; the paper applies
    it before.

    Cost and use: 6 d^2 weights per layer, three quarters of an LSTM's, at about equal quality.
    """

    kind: Literal["gru"] = "gru"


class SourceAttentionConfig(ComponentConfig):
    """Base schema of a recurrent decoder's attention to the source."""

    def input_feeding_dim(self, d_model: int) -> int:
        """Return the dimension of the attention output that is concatenated to the embedding of the next token; 0 if none is."""
        return 0

    def width(self, d_model: int) -> int:
        """Return the dimension of the hidden layer of the scores, or of the states whose product is a score; 0 without attention."""
        return 0


AnySourceAttention = Annotated[SourceAttentionConfig, Slot("source_attention", SourceAttentionConfig)]


@register_component("source_attention")
class NoSourceAttentionConfig(SourceAttentionConfig):
    """No attention: the decoder starts from the encoder's last states (Sutskever et al. 2014).

    Cost and use: Cheapest. The whole source must fit into one vector per layer, so long sentences suffer.
    """

    kind: Literal["none"] = "none"


@register_component("source_attention")
class AdditiveAttentionConfig(SourceAttentionConfig):
    """Additive attention (Bahdanau et al. 2015, eq. 4 to 6): e_tj = v^T tanh(W s_{t-1} + U h_j), c_t = sum_j softmax(e_t)_j h_j.

    The context is fed into the cell beside the previous token, s_t = f(s_{t-1}, [y_{t-1}; c_t]), and into a maxout layer before the output
    projection: the maximum of each two adjacent elements of T [s_t; y_{t-1}; c_t] (eq. 4; appendix A.2.2 prints s_{t-1} instead). With
    several layers, the query is the state of the last layer and the context is fed into the first.

    Cost and use: Steps are sequential, with one tanh per target token, source token and dimension: slow, and the most accurate of its time.
    """

    kind: Literal["additive"] = "additive"
    d_attention: int | None = Field(None, ge=1, description="hidden dimension of the score (n' in the paper); default d_model")

    def input_feeding_dim(self, d_model: int) -> int:
        return d_model

    def width(self, d_model: int) -> int:
        return self.d_attention or d_model


@register_component("source_attention")
class LuongAttentionConfig(SourceAttentionConfig):
    """Luong attention (Luong et al. 2015): c_t = sum_j softmax(score(h_t, h_j))_j h_j, attentional vector tanh(W_c [c_t; h_t]) (eq. 5).

    The score (section 3.1) is h_t^T h_j (dot), h_t^T W h_j (general) or v^T tanh(W h_t + U h_j) (concat).

    Cost and use: Matrix products instead of a tanh per target token, source token and dimension. Without input feeding, the whole decoder
    is one call of a fast kernel.
    """

    kind: Literal["luong"] = "luong"
    score: Literal["dot", "general", "concat"] = Field("general", description="score of a decoder state and a source state")
    input_feeding: bool = Field(
        True, description="feed the attentional vector into the next step beside its token (Luong et al. 2015, section 3.3)"
    )
    d_attention: int | None = Field(None, ge=1, description="hidden dimension of the concat score; default d_model")

    @model_validator(mode="after")
    def _a_width_needs_concat(self) -> Self:
        if self.d_attention is not None and self.score != "concat":
            raise ValueError(f"d_attention requires score 'concat', found {self.score!r}; remove d_attention")
        return self

    def input_feeding_dim(self, d_model: int) -> int:
        return d_model if self.input_feeding else 0

    def width(self, d_model: int) -> int:
        return self.d_attention or d_model


class RecurrentConfig(TextModelConfig):
    """Base schema of recurrent networks."""

    d_embedding: int = derived_default(lambda fields: fields["d_model"], "d_model", "dimension of the embeddings")
    dropout: Fraction = Field(
        0.1, description="dropout on embeddings, between layers and on the outputs of the last layer, not between steps"
    )
    cell: AnyCell = Field(LstmConfig(), description="the cell of the recurrence")

    def refuse_unequal_widths(self) -> None:
        """Raise ValueError if ``d_embedding`` differs from ``d_model``, since a tied matrix serves as embedding and output projection."""
        if self.d_embedding != self.d_model:
            raise ValueError(
                f"tied embeddings require d_embedding = d_model, found {self.d_embedding} and {self.d_model};"
                " change one of them or untie the embeddings with tie_embeddings"
            )


class RecurrentSeq2SeqConfig(RecurrentConfig, EncoderDecoderConfig):
    """A recurrent encoder-decoder, with or without attention (Sutskever et al. 2014; Bahdanau et al. 2015; Luong et al. 2015)."""

    FAMILY: ClassVar[str] = "a recurrent encoder-decoder"

    kind: Literal["recurrent-seq2seq"] = "recurrent-seq2seq"
    n_encoder_layers: int = Field(1, ge=1, le=MAX_LAYERS, description="layers of the encoder")
    n_decoder_layers: int = Field(1, ge=1, le=MAX_LAYERS, description="layers of the decoder")
    bidirectional: bool = Field(True, description="bidirectional encoder: half of each layer's dimensions read the source backwards")
    attention: AnySourceAttention = Field(AdditiveAttentionConfig(), description="attention of the decoder to the source")

    @property
    def n_directions(self) -> int:
        """Number of directions per encoder layer."""
        return 2 if self.bidirectional else 1

    @property
    def encoder_inputs(self) -> list[int]:
        """Input dimension of each encoder layer."""
        return [self.d_embedding] + [self.d_model] * (self.n_encoder_layers - 1)

    @property
    def decoder_inputs(self) -> list[int]:
        """Input dimension of each decoder layer."""
        return [self.d_embedding + self.attention.input_feeding_dim(self.d_model)] + [self.d_model] * (self.n_decoder_layers - 1)

    @model_validator(mode="after")
    def _widths_fit(self) -> Self:
        if self.ties_output:
            self.refuse_unequal_widths()
        if self.bidirectional and self.d_model % 2:
            raise ValueError(
                f"a bidirectional encoder requires an even d_model, found {self.d_model}; change it or set bidirectional = false"
            )
        return self


class RecurrentDecoderConfig(RecurrentConfig, VocabularyModelConfig):
    """A recurrent language model (Mikolov et al. 2010; LSTMs with dropout between layers, Zaremba et al. 2014)."""

    VOCABULARIES: ClassVar[tuple[str, ...]] = ("vocab_size",)
    FAMILY: ClassVar[str] = "a recurrent network"
    STACK: ClassVar[str] = "a decoder"

    kind: Literal["recurrent-decoder"] = "recurrent-decoder"
    n_layers: int = Field(2, ge=1, le=MAX_LAYERS, description="layers")
    vocab_size: int | None = Field(None, ge=1, description="rows of the embedding; set from the tokenizer")
    tie_embeddings: bool = Field(True, description="share the matrix of the embedding and the output projection")

    @property
    def inputs(self) -> list[int]:
        """Input dimension of each layer."""
        return [self.d_embedding] + [self.d_model] * (self.n_layers - 1)

    @model_validator(mode="after")
    def _widths_fit(self) -> Self:
        if self.tie_embeddings:
            self.refuse_unequal_widths()
        return self
