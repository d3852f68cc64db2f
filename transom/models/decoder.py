"""The decoder alone: text in, what follows each token out, as in GPT and Llama."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from transom.config.components import build, implements
from transom.config.model import Causal, Decoder, PrefixLm
from transom.layers.cache import DecoderCache
from transom.layers.embedding import Embedding
from transom.layers.masks.rule import BOTH_WAYS_IN_PREFIX, LOOKING_BACK, Places, build_rules
from transom.layers.masks.sight import Sight, look, look_back, of_block
from transom.layers.position import build_position
from transom.layers.stack import Stack
from transom.layers.tap import Scope, scope
from transom.models.network import LanguageNetwork, Sequences, TextBatch

implements(Causal)(lambda mask: LOOKING_BACK)
implements(PrefixLm)(lambda mask: BOTH_WAYS_IN_PREFIX)


@implements(Decoder)
class DecoderTransformer(LanguageNetwork):
    """A language model: p(y) = prod_t p(y_t | y_<t) (Radford et al. 2018, eq. 1 and 2).

    With a prefix that is read both ways, p(y | x) = prod_t p(y_t | x, y_<t) of what follows it, x (Raffel et al. 2020, section 3.2.1).
    """

    def __init__(self, config: Decoder) -> None:
        """Build from a configuration whose vocabulary size is known."""
        super().__init__()
        assert config.vocab_size, "the vocabulary size comes from the tokenizer"
        self.config: Decoder = config
        tokens = nn.Embedding(config.vocab_size, config.d_model)
        self.embedding = Embedding(tokens, build_position(config, causal=True), config.scale_embeddings, config.dropout)
        self.decoder = Stack(config, config.n_layers, cross=False)
        self.rules = build_rules(config.attention, build(config.mask))
        self.unembedding = nn.Linear(config.d_model, config.vocab_size, bias=False)
        if config.tie:
            self.unembedding.weight = tokens.weight

    def hidden(self, batch: TextBatch, taps: Scope | None = None) -> Float[Tensor, "batch target d_model"]:
        """Return the decoder's output, of which the logits are a linear map."""
        text = batch.target
        x = self.embedding(text.tokens, text.positions, scope(taps, "embedding"))
        return self.decoder(x, self.target_sight(text), taps=scope(taps, "decoder"))

    def sight(self, attention: str, batch: TextBatch) -> Sight:
        """Return what the queries of an attention may see of a batch."""
        return of_block(self.target_sight(batch.target, written_out=True), attention)

    def target_sight(self, text: Sequences, written_out: bool = False) -> list[Sight]:
        """Let tokens see what mask and each block's pattern let them see of their own document."""
        places = Places(text.positions, text.segments, text.prefix)
        return look(self.embedding.position, places, places, self.rules, written_out or self.decoder.routed)

    def encode(self, prompt: Sequences) -> Sequences:
        """Take the prompts as they are: this family has no encoder, and reads them in ``start``."""
        return prompt

    def start(self, prompt: Sequences, n_beams: int, max_length: int) -> DecoderCache:
        """Prepare step-by-step decoding: read all but the last token of each prompt, which the first step reads.

        What is read here is the prefix of all that follows.

        Args:
            prompt: prompts of one length, the start symbol first, nothing padded.
            n_beams: rows a prompt; row ``prompt * n_beams + beam``.
            max_length: most new tokens.
        """
        read = prompt.tokens[:, :-1].repeat_interleave(n_beams, 0)
        cache = DecoderCache(self.decoder.new_caches(len(read), read.shape[1] + max_length, self.unembedding.weight))
        cache.n_prefix = read.shape[1]
        if read.shape[1]:
            self._read(read, cache)
        return cache

    def step(self, tokens: Int[Tensor, "rows new"], cache: DecoderCache) -> Float[Tensor, "rows new vocab"]:
        """Read the next tokens of each row and return the logits of what follows each."""
        return self.unembedding(self._read(tokens, cache))

    def step_until(
        self, tokens: Int[Tensor, "rows new"], cache: DecoderCache, sure: Callable[[Tensor], Tensor]
    ) -> tuple[Float[Tensor, "rows new vocab"], Int[Tensor, "rows new"]]:
        """Read the next tokens, each through as many blocks as it takes to be sure (Schuster et al. 2022, section 3).

        Behind its last block a token's vector stays as it is, and the blocks that it does not pass take keys and values from that for later
        tokens to see (state propagation). A block rests once all rows are done.

        Args:
            tokens: of each row.
            cache: of what was read.
            sure: tells of logits behind a block, (rows, new, vocab), at which places they will do.

        Returns:
            The logits of what follows each token, and the blocks that it passed.
        """
        x, seen = self._entering(tokens, cache)
        done, blocks = torch.zeros_like(tokens, dtype=torch.bool), torch.zeros_like(tokens)
        for block, sight, kept in zip(self.decoder.blocks, self.decoder.sights(seen), cache.blocks, strict=True):
            if bool(done.all()):
                block.keep(x, sight, kept)
                continue
            x = torch.where(done[..., None], x, block(x, sight, cache=kept))
            blocks += ~done
            logits = self.unembedding(self.decoder.ended(x))
            done = done | sure(logits)
        return logits, blocks

    def _entering(self, tokens: Int[Tensor, "rows new"], cache: DecoderCache) -> tuple[Float[Tensor, "rows new d_model"], list[Sight]]:
        """Embed the next tokens; tell what they see."""
        read, new = cache.length, tokens.shape[1]
        now = torch.arange(read, read + new, device=tokens.device)[None]
        seen = look_back(self.embedding.position, self.rules, read, tokens, cache.n_prefix, self.decoder.routed)
        return self.embedding(tokens, now), seen

    def _read(self, tokens: Int[Tensor, "rows new"], cache: DecoderCache) -> Float[Tensor, "rows new d_model"]:
        x, seen = self._entering(tokens, cache)
        return self.decoder(x, seen, caches=cache.blocks)
