"""Special tokens: their ids, which each tokenizer has of its own, and the templates that surround texts with them.

Names of ids are those of the transformers library. A field is None if the tokenizer has no such token. No part of a text is ever encoded as
a special token, except as the unknown token.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property

from transom.errors import ConfigError

PAD = 0
"""Padding of the kinds ``bpe``, ``char`` and ``whitespace``. Attention masks are built from segments rather than from this id."""
SOS = 1
"""Start of sequence of these kinds, the first token that a decoder reads. In an instruction, it separates prompt and answer."""
EOS = 2
"""End of sequence of these kinds, the last token of each source and of the labels of each target.

It also precedes each document of a token stream.
"""
UNK = 3
"""Unknown character or word of the kinds ``char`` and ``whitespace``.

The kind ``bpe`` has no unknown characters. There the id belongs to the NUL character, which no text file may contain.
"""

MASK = "[MASK]"
"""Stands for a mask token in a text to fill in, whatever the tokenizer calls it. In ``bpe``, ``char`` and ``whitespace`` the id is the size
of the vocabulary."""

TOKEN_NAMES = {PAD: "[PAD]", SOS: "[SOS]", EOS: "[EOS]", UNK: "[UNK]"}
"""Printed form of each special token of the kinds ``bpe``, ``char`` and ``whitespace``."""


@dataclass(frozen=True)
class Template:
    """Special tokens before, between and after texts.

    Attributes:
        prefix: token ids before the first text.
        suffix: token ids after the last text.
        separator: token ids between two texts.
        second_type: token type of the second of two texts and of the suffix. BERT has 1, RoBERTa 0.
    """

    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()
    separator: tuple[int, ...] = ()
    second_type: int = 0

    @property
    def n_added(self) -> int:
        """Number of special tokens of a single text."""
        return len(self.prefix) + len(self.suffix)

    def surround(self, row: Sequence[int]) -> list[int]:
        """Return the token ids of a text with the special tokens around it."""
        return [*self.prefix, *row, *self.suffix]

    def surround_pair(self, first: Sequence[int], second: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the token ids of two texts with the special tokens around and between them, and the token type of each."""
        opening, closing = [*self.prefix, *first, *self.separator], [*second, *self.suffix]
        return [*opening, *closing], [0] * len(opening) + [self.second_type] * len(closing)


@dataclass(frozen=True)
class SpecialTokens:
    """Ids of the special tokens of a tokenizer, and the templates that use them.

    Attributes:
        pad_token_id: padding, to which no token attends.
        bos_token_id: beginning of a sequence.
        eos_token_id: end of a sequence.
        unk_token_id: unknown piece of text.
        mask_token_id: mask token inside the vocabulary. None if a masked language model adds a row for it after the vocabulary.
        sep_token_id: separator of texts, which also ends them (BERT).
        cls_token_id: first token of a text that is classified (BERT).
        decoder_start_token_id: first token that the decoder of an encoder-decoder reads.
        other_end_token_ids: further tokens that end a sequence, such as the end of a turn in chat models.
        template: tokens around a text that an encoder or a language model reads.
        seq2seq: tokens around the source and around the labels of an encoder-decoder. The last one ends the sequence.
    """

    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    unk_token_id: int | None = None
    mask_token_id: int | None = None
    sep_token_id: int | None = None
    cls_token_id: int | None = None
    decoder_start_token_id: int | None = None
    other_end_token_ids: tuple[int, ...] = ()
    template: Template = field(default_factory=Template)
    seq2seq: Template = field(default_factory=Template)

    @cached_property
    def ids(self) -> frozenset[int]:
        """Ids of all special tokens."""
        values = (getattr(self, each.name) for each in fields(self))
        around = (token for each in (self.template, self.seq2seq) for token in (*each.prefix, *each.separator, *each.suffix))
        return frozenset([*(value for value in values if isinstance(value, int)), *self.other_end_token_ids, *around])

    @cached_property
    def no_text(self) -> frozenset[int]:
        """Ids of the special tokens that decode to no text, which are all but the unknown token."""
        return self.ids - {self.unk_token_id}

    @property
    def n_added(self) -> int:
        """Number of special tokens to reserve for each text: those of the longer template."""
        return max(self.template.n_added, self.seq2seq.n_added)

    @property
    def end(self) -> int:
        """Token that ends a sequence.

        Raises:
            ConfigError: the tokenizer has no such token.
        """
        return _first("eos_token_id or sep_token_id", self.eos_token_id, self.sep_token_id)

    @property
    def padding(self) -> int:
        """Token at padding: the end of sequence if the tokenizer has no padding token, or 0. Segments and lengths mask padding."""
        return _first("pad_token_id", self.pad_token_id, self.eos_token_id, 0)

    @property
    def document_start(self) -> int:
        """Token before each document of a token stream and before a text whose first token is to be predicted."""
        if self.template.prefix:
            return self.template.prefix[0]
        return _first("bos_token_id, cls_token_id or eos_token_id", self.bos_token_id, self.cls_token_id, self.eos_token_id)

    @property
    def document_end(self) -> tuple[int, ...]:
        """Tokens after each document of a token stream. Empty if the token before the next document also ends a document."""
        return () if self.document_start == self.end else (self.end,)

    @property
    def decoder_start(self) -> int:
        """First token that the decoder of an encoder-decoder reads."""
        return _first(
            "decoder_start_token_id or bos_token_id", self.decoder_start_token_id, self.bos_token_id, self.cls_token_id, self.pad_token_id
        )

    @property
    def answer_start(self) -> int:
        """Token between a prompt and its answer in an instruction."""
        return _first("sep_token_id or bos_token_id", self.sep_token_id, self.bos_token_id, self.eos_token_id)

    def prompt(self, row: Sequence[int]) -> list[int]:
        """Return the token ids of a text to continue: the tokens before a text, then the text. The result has at least one token."""
        return [*self.template.prefix, *row] or [self.document_start]

    def text(self, row: Sequence[int]) -> list[int]:
        """Return the token ids of a text that an encoder reads, with at least one token."""
        return self.template.surround(row) or [self.document_start]

    def document(self, row: Sequence[int]) -> list[int]:
        """Return the token ids of a document of a token stream."""
        return [self.document_start, *row, *self.document_end]

    @property
    def never_in_target(self) -> list[int]:
        """Special tokens that a decoder must not generate: padding and the start token, unless the template of targets has them."""
        used = {*self.seq2seq.prefix, self.end}
        starts = (self.decoder_start_token_id, *self.no_text & {self.bos_token_id, self.cls_token_id})
        return sorted({self.padding, *(token for token in starts if token is not None)} - used)


def _first(names: str, *values: int | None) -> int:
    """Return the first value that is not None."""
    found = next((value for value in values if value is not None), None)
    if found is None:
        raise ConfigError(f"tokenizer: expected a token with the role {names}, found none; name one among its special tokens")
    return found


OWN_TOKENS = SpecialTokens(
    PAD, SOS, EOS, decoder_start_token_id=SOS, template=Template((EOS,), (), (EOS,)), seq2seq=Template((), (EOS,), (EOS,))
)
"""Special tokens of the kind ``bpe``."""

CLOSED_TOKENS = SpecialTokens(PAD, SOS, EOS, UNK, decoder_start_token_id=SOS, template=OWN_TOKENS.template, seq2seq=OWN_TOKENS.seq2seq)
"""Special tokens of the kinds ``char`` and ``whitespace``."""
