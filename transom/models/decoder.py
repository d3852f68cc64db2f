"""The decoder alone: text in, what follows each token out, as in GPT and Llama."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from transom.config.components import build, implements
from transom.config.model import Causal, Decoder, PrefixLm
from transom.layers.cache import DecoderCache
from transom.layers.context import UNMASKED, AttentionContext, StackContext, open_observer
from transom.layers.embedding import Embedding
from transom.layers.masks.contexts import build_contexts, build_decode_contexts, of_block
from transom.layers.masks.rule import BOTH_WAYS_IN_PREFIX, LOOKING_BACK, Places, build_rules
from transom.layers.observe import ActivationRecorder
from transom.layers.position import build_position
from transom.layers.stack import Stack
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
        self.unembedding = nn.Linear(config.d_model, config.vocab_size, config.head_bias)
        if config.tie:
            self.unembedding.weight = tokens.weight

    def hidden(self, batch: TextBatch, observer: ActivationRecorder | None = None) -> Float[Tensor, "batch target d_model"]:
        """Return the decoder's output, of which the logits are a linear map."""
        text, ctx = batch.target, self.context(batch.target, observer)
        return self.decoder(self.embedding(text.tokens, text.positions, ctx), ctx)

    def context(self, text: Sequences, observer: ActivationRecorder | None = None, dense: bool = False) -> StackContext:
        """Build the context of a pass: tokens see what the mask and each block's pattern let them see of their own document.

        Args:
            text: a row's documents, or parts of them.
            observer: reads and edits sites.
            dense: give masks as matrices, however long.
        """
        places = Places(text.positions, text.segments, text.prefix)
        contexts = build_contexts(self.embedding.position, places, places, self.rules, dense or self.decoder.routed)
        return StackContext(text.segments > 0, open_observer(observer, "decoder"), contexts, UNMASKED)

    def attention_context(self, attention: str, batch: TextBatch) -> AttentionContext:
        """Return the context of an attention for a batch, masks and biases dense."""
        return of_block(self.context(batch.target, dense=True).attentions, attention)

    def encode(self, prompt: Sequences, observer: ActivationRecorder | None = None) -> Sequences:
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

    def step(
        self, tokens: Int[Tensor, "rows new"], cache: DecoderCache, observer: ActivationRecorder | None = None
    ) -> Float[Tensor, "rows new vocab"]:
        """Read the next tokens of each row and return the logits of what follows each."""
        return self.unembedding(self._read(tokens, cache, observer))

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
        x, ctx = self._embed_next(tokens, cache)
        done, blocks, first_values = torch.zeros_like(tokens, dtype=torch.bool), torch.zeros_like(tokens), None
        for i, block in enumerate(self.decoder.blocks):
            shared = self.decoder.shared_values(i, first_values)
            if bool(done.all()):
                block.update_cache(x, ctx.block(i), shared)
                continue
            y, values = block(x, ctx.block(i), None, shared)
            first_values = values if i == 0 else first_values
            x = torch.where(done[..., None], x, y)
            blocks += ~done
            logits = self.unembedding(self.decoder.final_norm(x, ctx))
            done = done | sure(logits)
        return logits, blocks

    def _embed_next(
        self, tokens: Int[Tensor, "rows new"], cache: DecoderCache, observer: ActivationRecorder | None = None
    ) -> tuple[Float[Tensor, "rows new d_model"], StackContext]:
        """Embed the next tokens; build the context in which they see those before them."""
        read, new = cache.length, tokens.shape[1]
        now = torch.arange(read, read + new, device=tokens.device)[None]
        contexts = build_decode_contexts(self.embedding.position, self.rules, read, tokens, cache.n_prefix, self.decoder.routed)
        ctx = StackContext(None, open_observer(observer, "decoder"), contexts, UNMASKED, cache.blocks)
        return self.embedding(tokens, now, ctx), ctx

    def _read(
        self, tokens: Int[Tensor, "rows new"], cache: DecoderCache, observer: ActivationRecorder | None = None
    ) -> Float[Tensor, "rows new d_model"]:
        x, ctx = self._embed_next(tokens, cache, observer)
        return self.decoder(x, ctx)
