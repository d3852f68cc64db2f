"""The encoder-decoder Transformer of 2017: a source sentence in, a target sentence out, a token at a time."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from transom.config.components import implements
from transom.config.model import Seq2Seq
from transom.layers.cache import DecoderCache
from transom.layers.embedding import Embedding
from transom.layers.masks import mask as masks
from transom.layers.masks.rule import LOOKING_BACK, SAME_SEGMENT, Places, build_rules
from transom.layers.masks.sight import Reach, Sight, look, look_back, of_block
from transom.layers.position import build_position
from transom.layers.stack import Stack
from transom.layers.tap import Scope, scope
from transom.models.network import PairBatch, Seq2SeqNetwork, Sequences


class Memory(NamedTuple):
    """The encoder's output.

    Attributes:
        states: a vector a source token.
        segments: number of each token's sequence in its row; 0 is padding.
    """

    states: Float[Tensor, "batch source d_model"]
    segments: Int[Tensor, "batch source"]


@implements(Seq2Seq)
class Seq2SeqTransformer(Seq2SeqNetwork):
    """The Transformer (Vaswani et al. 2017, figure 1): p(y | x) = prod_t p(y_t | y_<t, x)."""

    def __init__(self, config: Seq2Seq) -> None:
        """Build from a configuration whose vocabulary sizes are known."""
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
        self.unembedding = nn.Linear(config.d_model, config.target_vocab_size, bias=False)
        if config.tie != "none":
            self.unembedding.weight = target.weight

    def hidden(self, batch: PairBatch, taps: Scope | None = None) -> Float[Tensor, "batch target d_model"]:
        """Return the decoder's output, of which the logits are a linear map."""
        return self.decode(batch.target, self.encode(batch.source, taps), taps)

    def encode(self, source: Sequences, taps: Scope | None = None) -> Memory:
        """Read the source: every token sees every token of its own sequence."""
        x = self.source_embedding(source.tokens, source.positions, scope(taps, "source_embedding"))
        return Memory(self.encoder(x, self.source_sight(source), taps=scope(taps, "encoder")), source.segments)

    def decode(self, target: Sequences, memory: Memory, taps: Scope | None = None) -> Float[Tensor, "batch target d_model"]:
        """Read the target: every token sees itself, those before it, and the source."""
        x = self.target_embedding(target.tokens, target.positions, scope(taps, "target_embedding"))
        memory_sight = self.memory_sight(target, memory.segments)
        return self.decoder(x, self.target_sight(target), memory.states, memory_sight, taps=scope(taps, "decoder"))

    def sight(self, attention: str, batch: PairBatch) -> Sight:
        """Return what the queries of an attention may see of a batch."""
        if attention.endswith(".cross"):
            return self.memory_sight(batch.target, batch.source.segments, written_out=True)
        encoder = attention.startswith("encoder.")
        sights = self.source_sight(batch.source, True) if encoder else self.target_sight(batch.target, True)
        return of_block(sights, attention)

    def source_sight(self, source: Sequences, written_out: bool = False) -> list[Sight]:
        """Let source tokens see their own sequence, as each block's pattern has it."""
        places = Places(source.positions, source.segments)
        return look(self.source_embedding.position, places, places, self.source_rules, written_out or self.encoder.routed)

    def target_sight(self, target: Sequences, written_out: bool = False) -> list[Sight]:
        """Let target tokens see themselves and those before them in their own sequence, as each block's pattern has it."""
        places = Places(target.positions, target.segments)
        return look(self.target_embedding.position, places, places, self.target_rules, written_out or self.decoder.routed)

    def memory_sight(self, target: Sequences, source: Int[Tensor, "batch source"], written_out: bool = False) -> Sight:
        """Let target tokens see their own source, whose segments are ``source``; there is no distance between the two."""
        if self.config.attention.approximation.kind != "none" and not written_out:
            return Sight(reach=Reach(target.segments, source, causal=False))
        return Sight(masks.same_segment(target.segments, source), real=target.segments > 0)

    def start(self, memory: Memory, n_beams: int, max_length: int) -> DecoderCache:
        """Prepare step-by-step decoding: project the memory once a source, reserve room for ``max_length`` tokens a row.

        Args:
            memory: of one sequence a row, not packed.
            n_beams: rows a source; row ``source * n_beams + beam``.
            max_length: most target tokens.
        """
        caches = self.decoder.new_caches(n_beams * len(memory.states), max_length, memory.states)
        remembered = self.decoder.remember(memory.states, memory.segments)
        return DecoderCache(caches, remembered, masks.not_padding(memory.segments))

    def step(self, tokens: Int[Tensor, "rows new"], cache: DecoderCache) -> Float[Tensor, "rows new vocab"]:
        """Read the next target tokens of each row and return the logits of what follows each."""
        read, new = cache.length, tokens.shape[1]
        x = self.target_embedding(tokens, torch.arange(read, read + new, device=tokens.device)[None])
        position, written_out = self.target_embedding.position, self.decoder.routed
        sight = look_back(position, self.target_rules, read, tokens, written_out=written_out)
        x = self.decoder(x, sight, cache.memories, Sight(cache.memory_mask), cache.blocks)
        return self.unembedding(x)
