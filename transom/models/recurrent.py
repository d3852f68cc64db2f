"""Recurrent baselines (RNN, LSTM, GRU): the encoder-decoder of 2014 to 2016, and a language model."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from transom.config.component_registry import implements
from transom.config.recurrent import RecurrentDecoderConfig, RecurrentSeq2SeqConfig
from transom.errors import TransomError
from transom.layers.attention import non_padding_mask
from transom.layers.context import ALL_PAIRS, AttentionContext, LayerContext, Part
from transom.layers.dropout import Dropout
from transom.layers.embedding import Embedding
from transom.layers.observe import ActivationRecorder
from transom.layers.output_projection import build_output_projection
from transom.layers.position_encoding import PositionEncoding
from transom.layers.recurrent.recurrent_decoder import DecoderState, RecurrentCache, build_recurrent_decoder
from transom.layers.recurrent.recurrent_layers import RecurrentEncoder, RecurrentStack
from transom.models.base import LanguageModel, PairBatch, Seq2SeqModel, SequencesLike, TextBatch
from transom.models.inputs import TensorBatch, make_pair_batch


class RecurrentEncoderOutput(NamedTuple):
    """Output of the encoder.

    Attributes:
        states: state of the last layer at each source token.
        final_states: final state of each layer.
        segments: 1 at tokens, 0 at padding.
    """

    states: Float[Tensor, "batch source d_model"]
    final_states: list[Float[Tensor, "batch d_model"]]
    segments: Int[Tensor, "batch source"]


@implements(RecurrentSeq2SeqConfig)
class RecurrentEncoderDecoder(Seq2SeqModel):
    """Recurrent sequence-to-sequence model (Sutskever et al. 2014), with Bahdanau's or Luong's attention (2015), or without attention.

    p(y | x) = prod_t p(y_t | y_<t, x), as in the Transformer. Each row of a batch holds one sequence. Embeddings are scaled by
    sqrt(d_embedding) as in the Transformer, so that with tied weights embeddings and logits both start near unit variance.
    """

    config: RecurrentSeq2SeqConfig

    def __init__(self, config: RecurrentSeq2SeqConfig) -> None:
        """Initialize all layers; ``config.source_vocab_size`` and ``config.target_vocab_size`` must be set."""
        super().__init__()
        assert config.source_vocab_size and config.target_vocab_size, "the vocabulary sizes come from the tokenizer"
        self.config, c = config, config
        target = nn.Embedding(config.target_vocab_size, config.d_embedding)
        source = target if config.ties_inputs else nn.Embedding(config.source_vocab_size, config.d_embedding)
        self.source_embedding = Embedding(source, PositionEncoding(c, causal=False), True, c.dropout)
        self.target_embedding = Embedding(target, PositionEncoding(c, causal=True), True, c.dropout)
        self.encoder = RecurrentEncoder(config)
        self.decoder = build_recurrent_decoder(config)
        self.unembedding = build_output_projection(config, config.target_vocab_size)
        if config.ties_output:
            self.unembedding.weight = target.weight

    def last_hidden_state(self, batch: PairBatch, observer: ActivationRecorder | None = None) -> Float[Tensor, "batch target d_model"]:
        """Return the decoder's output vectors, which ``unembedding`` maps to logits."""
        memory, target = self.encode(batch.source, observer), batch.decoder_input
        ctx = LayerContext(observer=self.open_observer(observer, "decoder"))
        y = self.target_embedding(target.tokens, target.positions, ctx)
        keys = self.decoder.project_source(memory.states, memory.segments, ctx)
        return self.decoder(y, self.decoder.initial_state(memory.final_states), keys, ctx)[0]

    def encode(self, source: SequencesLike, observer: ActivationRecorder | None = None) -> RecurrentEncoderOutput:
        """Run the encoder over the source."""
        ctx = LayerContext(observer=self.open_observer(observer, "encoder"))
        x = self.source_embedding(source.tokens, source.positions, ctx)
        states, final_states = self.encoder(x, source.segments, ctx)
        return RecurrentEncoderOutput(states, final_states, source.segments)

    def make_batch(
        self,
        tokens: Tensor,
        attention_mask: Tensor | None = None,
        decoder_tokens: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
    ) -> TensorBatch:
        """Build a batch from source tokens and target tokens shifted right by one, each (batch, length) with its mask.

        Raises:
            TransomError: the source has padding on the left, or ``make_pair_batch`` rejects the shapes.
        """
        if attention_mask is not None and bool((attention_mask.long().diff(dim=1) > 0).any()):
            raise TransomError(
                "attention_mask: expected padding on the right, found padding on the left, which a recurrent encoder would read first; pad"
                " the source on the right"
            )
        return make_pair_batch(tokens, attention_mask, decoder_tokens, decoder_attention_mask, self.config.pad_token_id)

    def attention_context(self, attention: str, batch: PairBatch, part: Part = ALL_PAIRS) -> AttentionContext:
        """Return the context of the attention over the source, whose mask hides padding."""
        return AttentionContext(mask=non_padding_mask(batch.source.segments[:, part.keys]))

    def start(self, memory: RecurrentEncoderOutput, n_beams: int, max_length: int) -> RecurrentCache:
        """Compute the initial decoder state and project the encoder states, once per source.

        Args:
            memory: encoder output, one sequence per row.
            n_beams: cache rows per source; row ``source * n_beams + beam`` belongs to this source and beam.
            max_length: maximum number of target tokens; unused, since the state has a fixed size.
        """
        final_states = [end.repeat_interleave(n_beams, 0) for end in memory.final_states]
        return RecurrentCache(self.decoder.initial_state(final_states), self.decoder.project_source(memory.states, memory.segments))

    def step(
        self, tokens: Int[Tensor, "rows new"], cache: RecurrentCache, observer: ActivationRecorder | None = None
    ) -> Float[Tensor, "rows new vocab"]:
        """Process the next target tokens of each row; return the logits of the token that follows each of them."""
        ctx = LayerContext(observer=self.open_observer(observer, "decoder", cached=True))
        y = self.target_embedding(tokens, _unused_positions(tokens), ctx)
        x, cache.state = self.decoder(y, cache.state, cache.source, ctx)
        return self.unembedding(x)


@implements(RecurrentDecoderConfig)
class RecurrentLanguageModel(LanguageModel):
    """A recurrent language model: p(y) = prod_t p(y_t | y_<t) (Zaremba et al. 2014).

    In a packed row, each sequence starts from a zero state.
    """

    config: RecurrentDecoderConfig

    def __init__(self, config: RecurrentDecoderConfig) -> None:
        """Initialize all layers; ``config.vocab_size`` must be set."""
        super().__init__()
        assert config.vocab_size, "the vocabulary size comes from the tokenizer"
        self.config = config
        tokens = nn.Embedding(config.vocab_size, config.d_embedding)
        self.embedding = Embedding(tokens, PositionEncoding(config, causal=True), True, config.dropout)
        self.decoder = RecurrentStack(config.cell, config.inputs, config.d_model, config.dropout)
        self.dropout = Dropout(config.dropout)
        self.unembedding = build_output_projection(config, config.vocab_size)
        if config.tie_embeddings:
            self.unembedding.weight = tokens.weight

    def last_hidden_state(self, batch: TextBatch, observer: ActivationRecorder | None = None) -> Float[Tensor, "batch target d_model"]:
        """Return the states of the last layer, which ``unembedding`` maps to logits."""
        text, ctx = batch.decoder_input, LayerContext(observer=self.open_observer(observer, "decoder"))
        x = self.embedding(text.tokens, text.positions, ctx)
        return self.dropout(self.decoder.forward_packed(x, text.segments, ctx))

    def attention_context(self, attention: str, batch: TextBatch, part: Part = ALL_PAIRS) -> AttentionContext:
        """Raise AssertionError: the model has no attention."""
        raise AssertionError(f"a recurrent language model has no {attention}")

    def encode(self, source: SequencesLike, observer: ActivationRecorder | None = None) -> SequencesLike:
        """Return the prompts unchanged: a language model has no encoder; ``start`` reads them."""
        return source

    def start(self, memory: SequencesLike, n_beams: int, max_length: int) -> RecurrentCache:
        """Compute the state after all but the last token of each prompt; the first ``step`` reads the last token.

        Args:
            memory: prompts of equal length without padding, the beginning-of-sequence token first.
            n_beams: cache rows per prompt; row ``prompt * n_beams + beam`` belongs to this prompt and beam.
            max_length: maximum number of new tokens; unused, since the state has a fixed size.
        """
        read = memory.tokens[:, :-1].repeat_interleave(n_beams, 0)
        x = self.embedding(read, _unused_positions(read))
        states = tuple(layer.zero_state(x) for layer in self.decoder.layers)
        return RecurrentCache(DecoderState(self.decoder.forward_from(x, states)[1] if read.shape[1] else states))

    def step(
        self, tokens: Int[Tensor, "rows new"], cache: RecurrentCache, observer: ActivationRecorder | None = None
    ) -> Float[Tensor, "rows new vocab"]:
        """Process the next tokens of each row; return the logits of the token that follows each of them."""
        ctx = LayerContext(observer=self.open_observer(observer, "decoder", cached=True))
        x, layers = self.decoder.forward_from(self.embedding(tokens, _unused_positions(tokens), ctx), cache.state.layers, ctx)
        cache.state = DecoderState(layers)
        return self.unembedding(x)


def _unused_positions(tokens: Int[Tensor, "rows new"]) -> Int[Tensor, "1 new"]:
    """Return positions for ``Embedding``, which ignores them here: the recurrent models have no position encoding."""
    return torch.arange(tokens.shape[1], device=tokens.device)[None]
