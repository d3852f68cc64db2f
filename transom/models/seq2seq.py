"""Encoder-decoder Transformer (Vaswani et al. 2017) for sequence-to-sequence tasks such as translation."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from transom.config.component_registry import implements
from transom.config.model import Seq2SeqConfig
from transom.layers.attention import non_padding_mask
from transom.layers.cache import DecoderCache
from transom.layers.context import ALL_PAIRS, UNMASKED, AttentionContext, Part, StackContext
from transom.layers.embedding import build_embedding
from transom.layers.masks.attention_contexts import (
    build_contexts,
    build_cross_context,
    build_decode_contexts,
    context_of,
    select_pairs,
)
from transom.layers.masks.mask_rules import CAUSAL_IN_SEGMENT, SAME_SEGMENT, ImplicitMask, MaskRule, TokenPositions, build_mask_rules
from transom.layers.observe import ActivationRecorder
from transom.layers.output_projection import build_output_projection
from transom.layers.stack import Stack
from transom.models.base import PairBatch, Seq2SeqModel, SequencesLike
from transom.models.inputs import TensorBatch, make_pair_batch


class EncoderOutput(NamedTuple):
    """Output of the encoder.

    Attributes:
        states: hidden state per source token.
        segments: segment id per source token; 0 is padding.
    """

    states: Float[Tensor, "batch source d_model"]
    segments: Int[Tensor, "batch source"]


@implements(Seq2SeqConfig)
class Seq2SeqTransformer(Seq2SeqModel):
    """The Transformer (Vaswani et al. 2017, figure 1): p(y | x) = prod_t p(y_t | y_<t, x)."""

    def __init__(self, config: Seq2SeqConfig) -> None:
        """Initialize all layers; ``config.source_vocab_size`` and ``config.target_vocab_size`` must be set."""
        super().__init__()
        assert config.source_vocab_size and config.target_vocab_size, "the vocabulary sizes come from the tokenizer"
        self.config: Seq2SeqConfig = config
        target = nn.Embedding(config.target_vocab_size, config.d_model)
        source = target if config.ties_inputs else nn.Embedding(config.source_vocab_size, config.d_model)
        self.source_embedding = build_embedding(config, source, causal=False)
        self.target_embedding = build_embedding(config.of_stack("decoder"), target, causal=True)
        self.encoder = Stack(config, config.n_encoder_layers, cross=False)
        self.decoder = Stack(config.of_stack("decoder"), config.n_decoder_layers, cross=True)
        self.source_mask_rules, self.target_mask_rules = (
            build_mask_rules(config.attention, family) for family in (SAME_SEGMENT, CAUSAL_IN_SEGMENT)
        )
        self.cross_mask_rule: MaskRule = SAME_SEGMENT if config.attention.approximation.kind == "none" else ImplicitMask(SAME_SEGMENT)
        self.unembedding = build_output_projection(config, config.target_vocab_size)
        if config.ties_output:
            self.unembedding.weight = target.weight

    def last_hidden_state(self, batch: PairBatch, observer: ActivationRecorder | None = None) -> Float[Tensor, "batch target d_model"]:
        """Return the decoder's last hidden states, which ``unembedding`` maps to logits."""
        return self.decode(batch.decoder_input, self.encode(batch.source, observer), observer)

    def encode(self, source: SequencesLike, observer: ActivationRecorder | None = None) -> EncoderOutput:
        """Encode the source; each token attends to tokens of its own segment."""
        ctx = self.source_context(source, observer)
        x = self.source_embedding(source.tokens, source.positions, ctx)
        return EncoderOutput(self.encoder(x, ctx), source.segments)

    def decode(
        self, target: SequencesLike, memory: EncoderOutput, observer: ActivationRecorder | None = None
    ) -> Float[Tensor, "batch target d_model"]:
        """Return the decoder's last hidden states; each target token attends to itself, earlier target tokens and the source."""
        ctx = self.target_context(target, memory.segments, observer)
        x = self.target_embedding(target.tokens, target.positions, ctx)
        return self.decoder(x, ctx, memory.states)

    def make_batch(
        self,
        tokens: Tensor,
        attention_mask: Tensor | None = None,
        decoder_tokens: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
    ) -> TensorBatch:
        """Build a batch from source tokens and target tokens shifted right by one, each (batch, length) with its mask."""
        return make_pair_batch(tokens, attention_mask, decoder_tokens, decoder_attention_mask, self.config.pad_token_id)

    def attention_context(self, attention: str, batch: PairBatch, part: Part = ALL_PAIRS) -> AttentionContext:
        """Return the context of an attention layer for a batch, with dense mask and bias, for inspection."""
        if attention.startswith("encoder."):
            return context_of(self.source_context(batch.source, dense=True, part=part).attention_contexts, attention)
        if attention.endswith(".cross"):
            target, source = batch.decoder_input.segments[:, part.queries], batch.source.segments[:, part.keys]
            return build_cross_context(self.cross_mask_rule, target, source, dense=True)
        ctx = self.target_context(batch.decoder_input, batch.source.segments, dense=True, part=part)
        return context_of(ctx.attention_contexts, attention)

    def source_context(
        self, source: SequencesLike, observer: ActivationRecorder | None = None, dense: bool = False, part: Part = ALL_PAIRS
    ) -> StackContext:
        """Build the encoder's context of a pass: tokens attend to the tokens of their segment that the sparsity pattern allows.

        ``dense`` builds masks as boolean matrices, also for long rows, whose masks are block-sparse otherwise, and ``part`` restricts them
        to some queries and keys, for inspection.
        """
        lengths = self.source_embedding.position.text_lengths(source.positions, source.segments)
        tokens = TokenPositions(source.positions, source.segments, lengths=lengths)
        queries, keys = select_pairs(tokens, part)
        contexts = build_contexts(self.source_embedding.position, queries, keys, self.source_mask_rules, dense or self.encoder.routed)
        return StackContext(source.segments > 0, self.open_observer(observer, "encoder"), contexts, UNMASKED)

    def target_context(
        self,
        target: SequencesLike,
        source_segments: Int[Tensor, "batch source"],
        observer: ActivationRecorder | None = None,
        dense: bool = False,
        part: Part = ALL_PAIRS,
    ) -> StackContext:
        """Build the decoder's context: causal self-attention within segments, and cross-attention to the source of the same segment.

        Cross-attention has no position bias. Rotary scalings that depend on the length of the text take that of the context window, since
        decoding cannot know the final length. With ``dense``, masks are boolean matrices even where they would otherwise be block-sparse.
        For inspection, ``part`` restricts those of self-attention to some queries and keys.
        """
        tokens, token_mask = TokenPositions(target.positions, target.segments), target.segments > 0
        queries, keys = select_pairs(tokens, part)
        contexts = build_contexts(self.target_embedding.position, queries, keys, self.target_mask_rules, dense or self.decoder.routed)
        cross = build_cross_context(self.cross_mask_rule, target.segments, source_segments, dense)
        return StackContext(token_mask, self.open_observer(observer, "decoder"), contexts, cross)

    def start(self, memory: EncoderOutput, n_beams: int, max_length: int) -> DecoderCache:
        """Allocate the KV caches and project the encoder output for cross-attention, once per source.

        Args:
            memory: encoder output, one sequence per row (not packed).
            n_beams: cache rows per source; row ``source * n_beams + beam`` belongs to this source and beam.
            max_length: maximum number of target tokens.
        """
        caches = self.decoder.new_caches(n_beams * len(memory.states), max_length, memory.states)
        projected = self.decoder.project_memory(memory.states, memory.segments)
        return DecoderCache(caches, projected, non_padding_mask(memory.segments))

    def step(
        self, tokens: Int[Tensor, "rows new"], cache: DecoderCache, observer: ActivationRecorder | None = None
    ) -> Float[Tensor, "rows new vocab"]:
        """Append the next target tokens of each row to the caches; return the logits of the token that follows each of them."""
        n_cached, n_new = cache.length, tokens.shape[1]
        position, rules = self.target_embedding.position, self.target_mask_rules
        contexts = build_decode_contexts(position, rules, n_cached, tokens, dense=self.decoder.routed)
        cross = AttentionContext(mask=cache.memory_mask)
        ctx = StackContext(None, self.open_observer(observer, "decoder", cached=True), contexts, cross, cache.blocks)
        x = self.target_embedding(tokens, torch.arange(n_cached, n_cached + n_new, device=tokens.device)[None], ctx)
        return self.unembedding(self.decoder(x, ctx, cache.memories))
