"""Read SentencePiece models, which are protocol-buffer files such as ``spiece.model``, ``tokenizer.model`` and ``source.spm``.

Source: ``sentencepiece_model.proto`` of SentencePiece (Kudo and Richardson 2018). Only the fields that decide token ids and texts are
read. A model that needs anything else is refused.
"""

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from transom.data.tokenizer.charsmap import Charsmap, read_charsmap
from transom.errors import CheckpointError
from transom.exchange.tokenizer.protobuf import BYTES, FIXED32, VARINT, fields, signed
from transom.files.limits import MAX_TOKEN_CHARACTERS, MAX_VOCAB_SIZE

SPACE = "▁"
"""Symbol in place of a space in the pieces."""

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""Types of pieces."""

_MODEL_TYPES: dict[int, Literal["unigram", "bpe"]] = {1: "unigram", 2: "bpe"}
_PIECES, _TRAINER, _NORMALIZER, _DENORMALIZER = 1, 2, 3, 5
_CHARSMAP = 2


@dataclass(frozen=True)
class Piece:
    """A symbol of the vocabulary. Its index among the pieces is its token id.

    Attributes:
        text: text of the piece, with ``▁`` in place of spaces.
        score: logarithm of the probability (unigram), or minus the rank of the merge (BPE).
        type: one of ``NORMAL``, ``UNKNOWN``, ``CONTROL``, ``USER_DEFINED``, ``UNUSED`` and ``BYTE``.
    """

    text: str
    score: float
    type: int


@dataclass(frozen=True)
class SentencePieceModel:
    """Content of a SentencePiece model.

    Attributes:
        kind: algorithm of segmentation.
        pieces: symbols by token id.
        byte_fallback: True if an unknown character is encoded as its UTF-8 bytes.
        special_ids: token id by role (``unk``, ``bos``, ``eos``, ``pad``) for the roles that the model has.
        charsmap: rules that normalize characters, or None.
        add_dummy_prefix: True if a space is prepended to a text.
        remove_extra_whitespaces: True if spaces at both ends are removed and runs of spaces become one space.
        escape_whitespaces: True if spaces become ``▁``.
    """

    kind: Literal["unigram", "bpe"]
    pieces: tuple[Piece, ...]
    byte_fallback: bool
    special_ids: dict[str, int]
    charsmap: Charsmap | None
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool
    escape_whitespaces: bool

    @property
    def unk_id(self) -> int:
        """Token id of an unknown character."""
        return self.special_ids["unk"]


@dataclass
class _Settings:
    """Scalar fields of a message: their values, and the default of each."""

    values: dict[int, int] = field(default_factory=dict)
    texts: dict[int, bytes] = field(default_factory=dict)

    def flag(self, number: int, default: bool) -> bool:
        return bool(self.values.get(number, default))

    def id(self, number: int, default: int) -> int:
        return signed(self.values[number]) if number in self.values else default


def read_sentencepiece(content: bytes, name: str) -> SentencePieceModel:
    """Read a SentencePiece model.

    Args:
        content: content of the file.
        name: name of the file, for messages.

    Raises:
        CheckpointError: the content is damaged, or needs an algorithm or option that is not supported.
    """
    try:
        return _read(memoryview(content))
    except ValueError as error:
        raise CheckpointError(
            f"{name}: expected a SentencePiece model of kind unigram or bpe, found {error}; copy the file again or save a tokenizer.json"
            " with the library that wrote it"
        ) from error


def _read(content: memoryview) -> SentencePieceModel:
    pieces: list[Piece] = []
    trainer, normalizer = _Settings(), _Settings()
    for number, wire, value in fields(content):
        if number == _PIECES:
            pieces.append(_piece(_submessage(wire, value, "a piece"), len(pieces)))
            if len(pieces) > MAX_VOCAB_SIZE:
                raise ValueError(f"more than {MAX_VOCAB_SIZE:,} pieces")
        elif number in (_TRAINER, _NORMALIZER):
            _collect(trainer if number == _TRAINER else normalizer, _submessage(wire, value, "the settings"))
        elif number == _DENORMALIZER:
            denormalizer = _Settings()
            _collect(denormalizer, _submessage(wire, value, "the settings"))
            if denormalizer.texts.get(_CHARSMAP):
                raise ValueError("rules of denormalization, which no tokenizer.json can express")
    if (kind := _MODEL_TYPES.get(trainer.values.get(3, 1))) is None:
        raise ValueError("a model of whole words or of characters")
    if trainer.flag(24, False):
        raise ValueError("the option treat_whitespace_as_suffix")
    _check_pieces(pieces, byte_fallback := trainer.flag(35, False))
    charsmap = normalizer.texts.get(_CHARSMAP, b"")
    return SentencePieceModel(
        kind,
        tuple(pieces),
        byte_fallback,
        _special_ids(pieces, trainer),
        read_charsmap(charsmap) if charsmap else None,
        normalizer.flag(3, True),
        normalizer.flag(4, True),
        normalizer.flag(5, True),
    )


def _submessage(wire: int, value: int | memoryview, what: str) -> memoryview:
    if wire != BYTES or isinstance(value, int):
        raise ValueError(f"the wire type {wire} for {what}")
    return value


def _collect(settings: _Settings, message: memoryview) -> None:
    for number, _, value in fields(message):
        if isinstance(value, int):
            settings.values[number] = value
        else:
            settings.texts[number] = bytes(value)


def _piece(message: memoryview, index: int) -> Piece:
    text, score, kind = "", 0.0, NORMAL
    for number, wire, value in fields(message):
        if number == 1:
            try:
                text = bytes(_submessage(wire, value, "a piece")).decode()
            except UnicodeDecodeError as error:
                raise ValueError(f"piece {index:,}, which is not UTF-8") from error
        elif number == 2:
            if wire != FIXED32 or isinstance(value, int):
                raise ValueError(f"the wire type {wire} for the score of piece {index:,}")
            (score,) = struct.unpack("<f", value)
        elif number == 3:
            if wire != VARINT or not isinstance(value, int) or not NORMAL <= value <= BYTE:
                raise ValueError(f"an unknown type of piece {index:,}")
            kind = value
    if not math.isfinite(score):
        raise ValueError(f"the score {score} of piece {index:,}")
    return Piece(text, score, kind)


def _check_pieces(pieces: list[Piece], byte_fallback: bool) -> None:
    seen: dict[str, int] = {}
    for index, piece in enumerate(pieces):
        if not 0 < len(piece.text) <= MAX_TOKEN_CHARACTERS or "\0" in piece.text:
            raise ValueError(f"piece {index:,} of {len(piece.text):,} characters")
        if seen.setdefault(piece.text, index) != index:
            raise ValueError(f"the piece {piece.text!r:.60} twice")
    if sum(piece.type == UNKNOWN for piece in pieces) != 1:
        raise ValueError("no single piece for unknown characters")
    if missing := [byte for byte in range(256) if f"<0x{byte:02X}>" not in seen] if byte_fallback else []:
        raise ValueError(f"byte_fallback without a piece for byte {missing[0]}")
    if not any(piece.type == NORMAL for piece in pieces):
        raise ValueError("no piece of text")


def _special_ids(pieces: list[Piece], trainer: _Settings) -> dict[str, int]:
    """Return the ids of the special pieces, which the types of the pieces must confirm."""

    def found() -> Iterator[tuple[str, int]]:
        yield "unk", next(index for index, piece in enumerate(pieces) if piece.type == UNKNOWN)
        for role, number, text_number, default, text in (
            ("bos", 41, 46, 1, b"<s>"),
            ("eos", 42, 47, 2, b"</s>"),
            ("pad", 43, 48, -1, b"<pad>"),
        ):
            # As SentencePiece does, the id is the one of the control piece with this text; the stored id only enables the role.
            wanted = trainer.texts.get(text_number, text)
            token = trainer.id(number, default)
            at = next((index for index, piece in enumerate(pieces) if piece.type == CONTROL and piece.text.encode() == wanted), None)
            if at is not None and (token >= 0 or role == "pad"):
                yield role, at

    return dict(found())
