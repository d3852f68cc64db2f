"""The decoder alone: text in, what follows each token out, as in GPT and Llama."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from transom.config.model import Decoder
from transom.layers.cache import DecoderCache
from transom.layers.embedding import Embedding
from transom.layers.position import build_position
from transom.layers.rule import LOOKING_BACK, Places, build_rules
from transom.layers.sight import Sight, look, look_back, of_block
from transom.layers.stack import Stack
from transom.layers.tap import Scope, scope
from transom.models.network import LanguageNetwork, Sequences, TextBatch


class DecoderTransformer(LanguageNetwork):
    """A language model: p(y) = prod_t p(y_t | y_<t) (Radford et al. 2018, eq. 1 and 2)."""

    def __init__(self, config: Decoder) -> None:
        """Build from a configuration whose vocabulary size is known."""
        super().__init__()
        assert config.vocab_size, "the vocabulary size comes from the tokenizer"
        self.config: Decoder = config
        tokens = nn.Embedding(config.vocab_size, config.d_model)
        self.embedding = Embedding(tokens, build_position(config, causal=True), config.scale_embeddings, config.dropout)
        self.decoder = Stack(config, config.n_layers, cross=False)
        self.rules = build_rules(config.attention, LOOKING_BACK)
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
        """Let tokens see themselves and those before them in their own document, as each block's pattern has it."""
        places = Places(text.positions, text.segments)
        return look(self.embedding.position, places, places, self.rules, written_out)

    def encode(self, prompt: Sequences) -> Sequences:
        """Take the prompts as they are: this family has no encoder, and reads them in ``start``."""
        return prompt

    def start(self, prompt: Sequences, n_beams: int, max_length: int) -> DecoderCache:
        """Prepare step-by-step decoding: read all but the last token of each prompt, which the first step reads.

        Args:
            prompt: prompts of one length, the start symbol first, nothing padded.
            n_beams: rows a prompt; row ``prompt * n_beams + beam``.
            max_length: most new tokens.
        """
        read = prompt.tokens[:, :-1].repeat_interleave(n_beams, 0)
        cache = DecoderCache(self.decoder.new_caches(len(read), read.shape[1] + max_length, self.unembedding.weight))
        if read.shape[1]:
            self._read(read, cache)
        return cache

    def step(self, tokens: Int[Tensor, "rows new"], cache: DecoderCache) -> Float[Tensor, "rows new vocab"]:
        """Read the next tokens of each row and return the logits of what follows each."""
        return self.unembedding(self._read(tokens, cache))

    def _read(self, tokens: Int[Tensor, "rows new"], cache: DecoderCache) -> Float[Tensor, "rows new d_model"]:
        read, new = cache.length, tokens.shape[1]
        now = torch.arange(read, read + new, device=tokens.device)[None]
        sight = look_back(self.embedding.position, self.rules, read, new, tokens.device)
        return self.decoder(self.embedding(tokens, now), sight, caches=cache.blocks)
