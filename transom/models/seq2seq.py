"""Encoder-decoder Transformer (Vaswani et al. 2017) for sequence-to-sequence tasks such as translation."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from transom.config.components import implements
from transom.config.model import Seq2Seq
from transom.layers.attention import not_padding, same_segment
from transom.layers.cache import DecoderCache
from transom.layers.context import UNMASKED, AttentionContext, SegmentMask, StackContext, open_observer
from transom.layers.embedding import Embedding
from transom.layers.masks.contexts import build_contexts, build_decode_contexts, of_block
from transom.layers.masks.rule import LOOKING_BACK, SAME_SEGMENT, Places, build_rules
from transom.layers.observe import ActivationRecorder
from transom.layers.position import build_position
from transom.layers.stack import Stack
from transom.models.inputs import TensorBatch, pair_of
from transom.models.network import PairBatch, Seq2SeqNetwork, Sequences


class Memory(NamedTuple):
    """Output of the encoder.

    Attributes:
        states: hidden state per source token.
        segments: segment id per source token; 0 is padding.
    """

    states: Float[Tensor, "batch source d_model"]
    segments: Int[Tensor, "batch source"]


@implements(Seq2Seq)
class Seq2SeqTransformer(Seq2SeqNetwork):
    """The Transformer (Vaswani et al. 2017, figure 1): p(y | x) = prod_t p(y_t | y_<t, x)."""

    def __init__(self, config: Seq2Seq) -> None:
        """Initialize from a configuration with vocabulary sizes."""
        super().__init__()
        assert config.source_vocab_size and config.target_vocab_size, "the vocabulary sizes come from the tokenizer"
        self.config: Seq2Seq = config
        c = config
        target = nn.Embedding(config.target_vocab_size, config.d_model)
        source = target if config.tie == "all" else nn.Embedding(config.source_vocab_size, config.d_model)
        self.source_embedding = Embedding(source, build_position(c, causal=False), c.scale_embeddings, c.dropout)
        self.target_embedding = Embedding(target, build_position(c, causal=True), c.scale_embeddings, c.dropout)
        self.encoder = Stack(config, config.n_encoder_layers, cross=False)
        self.decoder = Stack(config, config.n_decoder_layers, cross=True)
        self.source_rules, self.target_rules = (build_rules(c.attention, family) for family in (SAME_SEGMENT, LOOKING_BACK))
        self.unembedding = nn.Linear(config.d_model, config.target_vocab_size, config.head_bias)
        if config.tie != "none":
            self.unembedding.weight = target.weight

    def hidden(self, batch: PairBatch, observer: ActivationRecorder | None = None) -> Float[Tensor, "batch target d_model"]:
        """Return the decoder's last hidden states, which ``unembedding`` maps to logits."""
        return self.decode(batch.target, self.encode(batch.source, observer), observer)

    def encode(self, source: Sequences, observer: ActivationRecorder | None = None) -> Memory:
        """Encode the source; each token attends to its own segment."""
        ctx = self.source_context(source, observer)
        x = self.source_embedding(source.tokens, source.positions, ctx)
        return Memory(self.encoder(x, ctx), source.segments)

    def decode(
        self, target: Sequences, memory: Memory, observer: ActivationRecorder | None = None
    ) -> Float[Tensor, "batch target d_model"]:
        """Return the decoder's hidden states; each token attends to itself, earlier tokens and the source."""
        ctx = self.target_context(target, memory.segments, observer)
        x = self.target_embedding(target.tokens, target.positions, ctx)
        return self.decoder(x, ctx, memory.states)

    def batch_of(
        self,
        tokens: Tensor,
        attention_mask: Tensor | None = None,
        decoder_tokens: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
    ) -> TensorBatch:
        """Build a batch from source tokens and target tokens shifted right by one, each (batch, length) with its mask."""
        return pair_of(tokens, attention_mask, decoder_tokens, decoder_attention_mask, self.config.pad_token_id)

    def attention_context(self, attention: str, batch: PairBatch) -> AttentionContext:
        """Return the context of an attention layer for a batch, with dense masks and biases."""
        if attention.startswith("encoder."):
            return of_block(self.source_context(batch.source, dense=True).attentions, attention)
        ctx = self.target_context(batch.target, batch.source.segments, dense=True)
        return ctx.cross if attention.endswith(".cross") else of_block(ctx.attentions, attention)

    def source_context(self, source: Sequences, observer: ActivationRecorder | None = None, dense: bool = False) -> StackContext:
        """Build the encoder's context: tokens attend within their segment and the sparsity pattern; ``dense`` builds masks as matrices."""
        places = Places(source.positions, source.segments)
        contexts = build_contexts(self.source_embedding.position, places, places, self.source_rules, dense or self.encoder.routed)
        return StackContext(source.segments > 0, open_observer(observer, "encoder"), contexts, UNMASKED)

    def target_context(
        self,
        target: Sequences,
        source_segments: Int[Tensor, "batch source"],
        observer: ActivationRecorder | None = None,
        dense: bool = False,
    ) -> StackContext:
        """Build the decoder's context: causal self-attention within segments, and cross-attention to the source of the same segment.

        Cross-attention has no position bias. ``dense`` builds masks as matrices.
        """
        places, token_mask = Places(target.positions, target.segments), target.segments > 0
        contexts = build_contexts(self.target_embedding.position, places, places, self.target_rules, dense or self.decoder.routed)
        if self.config.attention.approximation.kind != "none" and not dense:
            cross = AttentionContext(segments=SegmentMask(target.segments, source_segments, causal=False))
        else:
            cross = AttentionContext(token_mask, mask=same_segment(target.segments, source_segments))
        return StackContext(token_mask, open_observer(observer, "decoder"), contexts, cross)

    def start(self, memory: Memory, n_beams: int, max_length: int) -> DecoderCache:
        """Allocate the KV caches and project the encoder output for cross-attention, once per source.

        Args:
            memory: encoder output, one sequence per row (not packed).
            n_beams: cache rows per source; row ``source * n_beams + beam``.
            max_length: maximum number of target tokens.
        """
        caches = self.decoder.new_caches(n_beams * len(memory.states), max_length, memory.states)
        projected = self.decoder.project_memory(memory.states, memory.segments)
        return DecoderCache(caches, projected, not_padding(memory.segments))

    def step(
        self, tokens: Int[Tensor, "rows new"], cache: DecoderCache, observer: ActivationRecorder | None = None
    ) -> Float[Tensor, "rows new vocab"]:
        """Append the next target tokens of each row to the caches; return the logits of the token after each."""
        read, new = cache.length, tokens.shape[1]
        position, rules = self.target_embedding.position, self.target_rules
        contexts = build_decode_contexts(position, rules, read, tokens, dense=self.decoder.routed)
        cross = AttentionContext(mask=cache.memory_mask)
        ctx = StackContext(None, open_observer(observer, "decoder"), contexts, cross, cache.blocks)
        x = self.target_embedding(tokens, torch.arange(read, read + new, device=tokens.device)[None], ctx)
        return self.unembedding(self.decoder(x, ctx, cache.memories))
