"""Decoder-only Transformer, such as GPT and Llama: maps token ids to logits of the next token."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from transom.config.component_registry import build, implements
from transom.config.model import CausalMaskConfig, DecoderConfig, PrefixMaskConfig
from transom.layers.cache import DecoderCache
from transom.layers.context import ALL_PAIRS, UNMASKED, AttentionContext, Part, StackContext
from transom.layers.embedding import build_embedding
from transom.layers.masks.attention_contexts import build_contexts, build_decode_contexts, context_of, select_pairs
from transom.layers.masks.mask_rules import CAUSAL_IN_SEGMENT, PREFIX_LM, TokenPositions, build_mask_rules
from transom.layers.observe import ActivationRecorder
from transom.layers.output_projection import build_output_projection
from transom.layers.stack import Stack
from transom.models.base import LanguageModel, SequencesLike, TextBatch

# build(config.mask): query i attends to key j of its segment if j <= i; under a prefix-LM mask also if j is in the prefix.
implements(CausalMaskConfig)(lambda config: CAUSAL_IN_SEGMENT)
implements(PrefixMaskConfig)(lambda config: PREFIX_LM)


@implements(DecoderConfig)
class DecoderOnlyTransformer(LanguageModel):
    """A language model: p(y) = prod_t p(y_t | y_<t) (Radford et al. 2018, eq. 1 and 2).

    With a prefix x inside which attention is bidirectional, p(y | x) = prod_t p(y_t | x, y_<t) (Raffel et al. 2020, section 3.2.1).

    In GPT-2's names, ``embedding`` is wte + wpe with dropout, ``decoder`` is h and ln_f, ``unembedding`` is lm_head. The recipe chooses
    norm, positions and feed-forward: by default Llama's (RMSNorm, rotary, SwiGLU), with ``preset = "gpt2"`` GPT-2's. The inherited
    ``forward`` returns logits, (batch, length, vocab). The loss is in ``training/objectives``, the initial weights in
    ``models/initialize.py``.
    """

    def __init__(self, config: DecoderConfig) -> None:
        """Initialize all layers; ``config.vocab_size`` must be set."""
        super().__init__()
        assert config.vocab_size, "the vocabulary size comes from the tokenizer"
        self.config: DecoderConfig = config
        tokens = nn.Embedding(config.vocab_size, config.d_model)
        self.embedding = build_embedding(config, tokens, causal=True)
        self.decoder = Stack(config, config.n_layers, cross=False)
        # Block i uses rule i modulo their number; GPT-2 has one, causal.
        self.mask_rules = build_mask_rules(config.attention, build(config.mask))
        self.unembedding = build_output_projection(config, config.vocab_size)
        if config.tie_embeddings:
            self.unembedding.weight = tokens.weight

    def last_hidden_state(self, batch: TextBatch, observer: ActivationRecorder | None = None) -> Float[Tensor, "batch length d_model"]:
        """Return Norm(x_N), which ``unembedding`` maps to logits: x_0 = Dropout(s E[token] + P[position]), x_i = Block_i(x_{i-1}).

        s is 1, or sqrt(d_model) with ``scale_embeddings``; ``embedding_norm`` normalizes the sum before the dropout. With rotary positions
        or score biases, which act in attention, there is no P.
        With post-norm blocks there is no last Norm. Under autocast x_0, and so the residual stream, has the autocast dtype.

        The input tokens are ``batch.decoder_input``. The labels, ``batch.labels``, are the next tokens; only the loss reads them.
        """
        text = batch.decoder_input
        ctx = self.context(text, observer)
        x = self.embedding(text.tokens, text.positions, ctx)  # (batch, length, d_model)
        return self.decoder(x, ctx)

    def context(
        self, text: SequencesLike, observer: ActivationRecorder | None = None, dense: bool = False, part: Part = ALL_PAIRS
    ) -> StackContext:
        """Build masks, rotary tables and score biases for a pass over whole rows, without a cache.

        A row holds one text with padding, or several packed documents. Query i attends to key j if both have the same segment id and the
        mask rule of the block allows the pair (causal: j <= i). Padding, segment 0, attends to padding only.

        Args:
            text: ``tokens``, ``positions`` (from 0 in each segment), ``segments`` (document number in the row; 0 is padding) and
                ``prefix`` (True in a prefix, or None); (batch, length) each, ``positions`` (1, length) where all rows have the same;
                and ``text_length`` (of texts that are not complete, or None).
            observer: records or replaces activations; None in normal use.
            dense: build masks as boolean matrices (batch, 1, length, length), also for long rows, whose masks are block-sparse otherwise.
                With a depth router, which selects rows and columns of the mask, masks are always matrices.
            part: queries and keys to which masks and biases are restricted, for inspection.
        """
        lengths = self.embedding.position.text_lengths(text.positions, text.segments)
        if lengths is not None and text.text_length is not None:
            lengths = torch.full_like(lengths, text.text_length)
        tokens = TokenPositions(text.positions, text.segments, text.prefix, lengths)
        queries, keys = select_pairs(tokens, part)
        contexts = build_contexts(self.embedding.position, queries, keys, self.mask_rules, dense or self.decoder.routed)
        token_mask, observed = text.segments > 0, self.open_observer(observer, "decoder")
        return StackContext(token_mask, observed, contexts, cross=UNMASKED)  # explicit: torch.compile fails on the default

    def start(self, prompt: SequencesLike, n_beams: int, max_length: int) -> DecoderCache:
        """Prefill a new cache with all but the last token of each prompt; the first ``step`` reads the last token.

        With ``mask = "prefix-lm"`` the prefilled tokens are the prefix. Rotary scalings that depend on the length of the text take the
        length that the text has after ``max_length`` more tokens, so that prompt and continuation have the same frequencies.

        Args:
            prompt: tokens (batch, length), the beginning-of-sequence token first; all prompts have the same length and no padding.
            n_beams: cache rows per prompt; row ``prompt * n_beams + beam`` belongs to this prompt and beam.
            max_length: maximum number of new tokens.

        Returns:
            A cache of batch * n_beams rows that holds length - 1 tokens and has room for ``max_length`` more.
        """
        tokens = prompt.tokens[:, :-1].repeat_interleave(n_beams, 0)  # (rows, length - 1)
        n_rows, n_prefix = tokens.shape
        cache = DecoderCache(self.decoder.new_caches(n_rows, n_prefix + max_length, self.unembedding.weight))
        cache.n_prefix, cache.text_length = n_prefix, min(n_prefix + max_length, self.config.max_seq_len)
        if n_prefix:
            self._decode_hidden(tokens, cache)
        return cache

    def step(
        self, tokens: Int[Tensor, "rows new"], cache: DecoderCache, observer: ActivationRecorder | None = None
    ) -> Float[Tensor, "rows new vocab"]:
        """Append the next tokens of each row (usually one) to the cache; return the logits of the token that follows each of them."""
        return self.unembedding(self._decode_hidden(tokens, cache, observer))

    def _decode_hidden(
        self, tokens: Int[Tensor, "rows new"], cache: DecoderCache, observer: ActivationRecorder | None = None
    ) -> Float[Tensor, "rows new d_model"]:
        """Return the last hidden states of the next tokens only; the blocks append the keys and values of these tokens to the cache."""
        x, ctx = self._embed_next(tokens, cache, observer)
        return self.decoder(x, ctx)

    def _embed_next(
        self, tokens: Int[Tensor, "rows new"], cache: DecoderCache, observer: ActivationRecorder | None = None
    ) -> tuple[Float[Tensor, "rows new d_model"], StackContext]:
        """Embed the next tokens at the positions after the cached ones, and build the context of a step.

        Without a sparse pattern, one new token needs no mask: it attends to the whole cache. Several new tokens attend to the cache and, by
        the mask rule of the block, to each other: causally, or bidirectionally in a prefix. Their mask is
        (1, 1, new, cached + new), or block-sparse for long prompts.
        """
        n_cached, n_new = cache.length, tokens.shape[1]
        positions = torch.arange(n_cached, n_cached + n_new, device=tokens.device)[None]
        contexts = build_decode_contexts(
            self.embedding.position, self.mask_rules, n_cached, tokens, cache.n_prefix, self.decoder.routed, cache.text_length
        )
        observed = self.open_observer(observer, "decoder", cached=True)
        ctx = StackContext(None, observed, contexts, cross=UNMASKED, caches=cache.blocks)
        return self.embedding(tokens, positions, ctx), ctx

    def early_exit_step(
        self, tokens: Int[Tensor, "rows new"], cache: DecoderCache, is_confident: Callable[[Tensor], Tensor]
    ) -> tuple[Float[Tensor, "rows new vocab"], Int[Tensor, "rows new"]]:
        """Do a ``step`` with early exit: a token exits after the first block whose logits are confident (Schuster et al. 2022, section 3).

        The hidden state of a token that exited stays fixed; the blocks that the token skips compute their cached keys and values from this
        state (state propagation). After all tokens have exited, the other blocks only update the cache. Blocks with a depth router are not
        supported.

        Args:
            tokens: next tokens of each row.
            cache: updated in place.
            is_confident: maps the logits after a block, (rows, new, vocab), to True where a token may exit, (rows, new).

        Returns:
            The logits of the token that follows each of ``tokens``, and the number of blocks that each of ``tokens`` passed.
        """
        x, ctx = self._embed_next(tokens, cache)
        exited, n_blocks, first_block_values = torch.zeros_like(tokens, dtype=torch.bool), torch.zeros_like(tokens), None
        for i, block in enumerate(self.decoder.blocks):
            value_residual = self.decoder.value_residual_of(i, first_block_values)  # None in block 0, and without value residuals
            if bool(exited.all()):
                block.update_cache(x, ctx.for_block(i), value_residual)
                continue
            y, values = block(x, ctx.for_block(i), None, value_residual)
            first_block_values = values if i == 0 else first_block_values
            x = torch.where(exited[..., None], x, y)
            n_blocks += ~exited
            logits = self.unembedding(self.decoder.final_norm(x, ctx))
            exited = exited | is_confident(logits)
        return logits, n_blocks

    def encode(self, prompt: SequencesLike, observer: ActivationRecorder | None = None) -> SequencesLike:
        """Return the prompts unchanged: a decoder-only model has no encoder; ``start`` reads them."""
        return prompt

    def attention_context(self, attention: str, batch: TextBatch, part: Part = ALL_PAIRS) -> AttentionContext:
        """Return the context, with dense mask and bias, of one attention layer (``decoder.blocks.3.attn``), for inspection."""
        return context_of(self.context(batch.decoder_input, dense=True, part=part).attention_contexts, attention)
