"""Decoding without a cache: every step reads the whole text again, so that edits see the positions and sites of a whole pass."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transom.models.base import GenerativeModel, LanguageModel, SequencesLike
from transom.models.inputs import TensorBatch, TokenSequences


class WholePassCache:
    """The tokens so far.

    Attributes:
        source: the sources or prompts, one per row.
        tokens: decoder input of each row so far.
        n_prefix: number of leading tokens that form the prefix of a prefix-LM.
        text_length: longest length that the texts may reach, as in ``DecoderCache``.
    """

    def __init__(self, source: TokenSequences, tokens: Int[Tensor, "rows length"], text_length: int) -> None:
        """Start with the tokens that precede those of the first step."""
        self.source, self.tokens, self.n_prefix, self.text_length = source, tokens, tokens.shape[1], text_length

    def reorder(self, rows: Int[Tensor, "rows"]) -> None:
        """Make row i a copy of the previous row ``rows[i]``."""
        self.tokens = self.tokens[rows]

    def select_sources(self, sources: Int[Tensor, "kept"]) -> None:
        """Drop all other sources."""
        self.source = select_rows(self.source, sources)


class WholePassDecoder:
    """A step model that runs the model on whole texts; a text of n tokens takes n passes."""

    def __init__(self, model: GenerativeModel) -> None:
        """Wrap ``model``, which is used as it is."""
        self.model = model

    def encode(self, source: SequencesLike) -> TokenSequences:
        """Return the sources: the encoder runs in every step."""
        return TokenSequences(source.tokens, source.positions.expand_as(source.tokens), source.segments, source.prefix)

    def start(self, memory: TokenSequences, n_beams: int, max_length: int) -> WholePassCache:
        """Start with no target tokens, or with all but the last token of each prompt."""
        read = memory.tokens[:, :-1] if isinstance(self.model, LanguageModel) else memory.tokens[:, :0]
        text_length = min(read.shape[1] + max_length, self.model.config.max_seq_len)
        return WholePassCache(memory, read.repeat_interleave(n_beams, 0), text_length)

    @torch.inference_mode()
    def step(self, tokens: Int[Tensor, "rows new"], cache: WholePassCache) -> Float[Tensor, "rows new vocab"]:
        """Append the next tokens of each row; return the logits of the token that follows each of them."""
        cache.tokens = torch.cat([cache.tokens, tokens], 1)
        n_rows, length = cache.tokens.shape
        positions = torch.arange(length, device=tokens.device).expand(n_rows, -1)
        prefix = positions < cache.n_prefix
        text = TokenSequences(cache.tokens, positions, torch.ones_like(cache.tokens), prefix, cache.text_length)
        owners = torch.arange(len(cache.source.tokens), device=tokens.device).repeat_interleave(n_rows // len(cache.source.tokens))
        logits: Tensor = self.model(TensorBatch(select_rows(cache.source, owners), text))
        return logits[:, -tokens.shape[1] :]


def select_rows(sequences: TokenSequences, rows: Int[Tensor, "kept"]) -> TokenSequences:
    """Return the sequences of these rows."""
    prefix = None if sequences.prefix is None else sequences.prefix[rows]
    return TokenSequences(sequences.tokens[rows], sequences.positions[rows], sequences.segments[rows], prefix)
