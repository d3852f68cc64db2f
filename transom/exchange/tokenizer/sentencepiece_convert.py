"""Convert SentencePiece models to the JSON of a ``tokenizers`` tokenizer with the same token ids.

SentencePiece encodes a text as a whole, with spaces as ``▁``. The library does the same without a pre-tokenizer, if its normalizers treat
spaces as SentencePiece does. Control pieces such as ``</s>`` become special tokens, which the library recognizes in a text.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from transom.data.tokenizer.split_patterns import MAX_PATTERN_CHARACTERS
from transom.errors import CheckpointError
from transom.exchange.tokenizer.charsmap_convert import any_of_pattern, character_class, charsmap_normalizers
from transom.exchange.tokenizer.library_json import Json, added_token, quote, regex_replace, sequence, string_replace
from transom.exchange.tokenizer.sentencepiece_model import CONTROL, NORMAL, SPACE, UNKNOWN, UNUSED, USER_DEFINED, Piece, SentencePieceModel

ABSENT = " "
"""Prefix of a token that no text may be encoded as. Normalized texts contain no space."""

_MAX_SPLITS = 2**28
"""Maximum work of finding the merges of a model: the sum of the squared lengths of its pieces. Gemma has 2**24."""

_USER_DEFINED_BONUS = 0.1
"""Score of a user-defined piece per byte after the first, as SentencePiece 0.2.3 has it. Log-probabilities are below 0."""

_MAX_SPACES = 2**16


@dataclass(frozen=True)
class ConvertedModel:
    """A SentencePiece model in the form of the ``tokenizers`` library.

    Attributes:
        library: content of a ``tokenizer.json``.
        n_tokens: number of token ids. The library returns greater ones for pieces that the table of ids lacks, which are unknown.
    """

    library: Json
    n_tokens: int


def convert_sentencepiece(model: SentencePieceModel, name: str, ids: Mapping[str, int] | None = None, unk: str = "") -> ConvertedModel:
    """Convert a SentencePiece model.

    Args:
        model: the model.
        name: name of its file, for messages.
        ids: token id of each token, if the tokens are numbered apart from the pieces, as in Marian and XLM-R. The ids are 0 to n - 1.
        unk: token of unknown characters in ``ids``. By default the model's own.

    Raises:
        CheckpointError: the library cannot express the model.
    """
    own = {piece.text: index for index, piece in enumerate(model.pieces)}
    table = dict(own if ids is None else ids)
    n_tokens = len(table)
    unk = unk or model.pieces[model.unk_id].text
    try:
        if sorted(table.values()) != list(range(n_tokens)):
            raise ValueError("token ids with gaps")
        if unk not in table:
            raise ValueError(f"no id for {unk!r:.60}")
        converted = _unigram(model, table, unk) if model.kind == "unigram" else _bpe(model, table, unk)
        normalizers = _normalizers(model)
    except ValueError as error:
        raise CheckpointError(
            f"{name}: expected a SentencePiece model that the tokenizers library can express, found {error}; save a tokenizer.json with"
            " the library that wrote it"
        ) from error
    types = {piece.text: piece.type for piece in model.pieces}
    absent = [token for token in table if token not in types]
    normalizers += _whole_unknowns(model, absent)
    special = sorted((token for token in table if types.get(token) in (CONTROL, UNKNOWN) or token == unk), key=table.__getitem__)
    defined = [piece.text for piece in model.pieces if piece.type == USER_DEFINED] if model.kind == "bpe" else []
    tokens = [added_token(table[token], token) for token in special]
    tokens += [added_token(table[token], token, special=False, normalized=True) for token in defined if token in table]
    library: Json = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": sorted(tokens, key=lambda token: int(str(token["id"]))),
        "normalizer": sequence("normalizers", normalizers),
        "pre_tokenizer": _byte_guard(model),
        "post_processor": None,
        "decoder": sequence("decoders", _decoders(model, bool(absent))),
        "model": converted,
    }
    return ConvertedModel(library, n_tokens)


def _normalizers(model: SentencePieceModel) -> list[Json]:
    """Return normalizers that treat characters and spaces as SentencePiece does; see ``Normalizer::Normalize`` in its source."""
    space = SPACE if model.escape_whitespaces else " "
    steps = [] if model.charsmap is None else charsmap_normalizers(model.charsmap)
    if model.remove_extra_whitespaces:
        steps += [regex_replace(r"\A +", ""), regex_replace(" {2,}", " ")]
    if model.escape_whitespaces:
        steps.append(string_replace(" ", SPACE))
    if model.add_dummy_prefix:
        defined = [piece.text for piece in model.pieces if piece.type == USER_DEFINED] if model.kind == "bpe" else []
        if defined:  # the library normalizes the user-defined tokens too, which must have no space before them
            steps.append(regex_replace(rf"\A(?!(?:{'|'.join(map(quote, defined))})?\z)", space))
        else:
            steps.append({"type": "Prepend", "prepend": space})
    if model.remove_extra_whitespaces:
        steps.append(regex_replace(rf"{space}+\z", ""))
    return steps


def _whole_unknowns(model: SentencePieceModel, absent: Sequence[str]) -> list[Json]:
    """Return a normalizer that makes a run of unknown characters a token if it equals one that is no piece of the model.

    The transformers library looks up the runs so, because the pieces of both sides of a Marian model are in one table of ids. Each run
    gets the prefix of the token. With very many such tokens, the runs stay unknown.
    """
    known = {piece.text for piece in model.pieces if piece.type in (NORMAL, USER_DEFINED) and len(piece.text) == 1}
    wholly_unknown = [token for token in absent if known.isdisjoint(token)]
    if model.kind != "unigram" or not wholly_unknown or not known:
        return []
    inside = f"[^{character_class(known)}]"
    pattern = f"(?<!{inside})(?={any_of_pattern(wholly_unknown)}(?!{inside}))"
    return [regex_replace(pattern, ABSENT)] if len(pattern) <= MAX_PATTERN_CHARACTERS else []


def _decoders(model: SentencePieceModel, absent: bool) -> list[Json]:
    steps = [string_replace(ABSENT, "")] if absent else []
    steps += [string_replace(SPACE, " ")] if model.escape_whitespaces else []
    steps += [{"type": "ByteFallback"}] if model.byte_fallback else []
    steps.append({"type": "Fuse"})
    if model.add_dummy_prefix or model.remove_extra_whitespaces:
        steps.append({"type": "Strip", "content": " ", "start": _MAX_SPACES if model.remove_extra_whitespaces else 1, "stop": 0})
    return steps


def _byte_guard(model: SentencePieceModel) -> Json | None:
    """Return a pre-tokenizer that prevents the text ``<0x41>`` from being encoded as a byte, or None.

    A model of merges cannot form such a token, but a unigram model matches any piece.
    """
    if model.kind == "bpe" or not model.byte_fallback:
        return None
    pattern = {"Regex": "<(?=0x[0-9A-F]{2}>)"}
    return {"type": "Split", "pattern": pattern, "behavior": "MergedWithPrevious", "invert": False}


def _unigram(model: SentencePieceModel, ids: Mapping[str, int], unk: str) -> Json:
    """Return a unigram model, whose token ids are the indices of its list of pieces and scores."""
    pieces = {piece.text: piece for piece in model.pieces}
    tokens = [*sorted(ids, key=ids.__getitem__), *(text for text, piece in pieces.items() if text not in ids and _in_text(piece))]
    vocab: list[list[object]] = []
    for token in tokens:
        piece = pieces.get(token)
        if piece is not None and _in_text(piece):
            vocab.append([token, piece.score if piece.type == NORMAL else (len(piece.text.encode()) - 1) * _USER_DEFINED_BONUS])
        elif piece is not None and piece.type != UNUSED:
            vocab.append([token, 0.0])
        elif not model.escape_whitespaces and token != unk:
            raise ValueError("tokens that are no pieces, in a model without escape_whitespaces")
        else:
            vocab.append([token if token == unk else ABSENT + token, 0.0])
    return {"type": "Unigram", "unk_id": ids[unk], "vocab": vocab, "byte_fallback": model.byte_fallback}


def _in_text(piece: Piece) -> bool:
    return piece.type in (NORMAL, USER_DEFINED)


def _bpe(model: SentencePieceModel, ids: Mapping[str, int], unk: str) -> Json:
    """Return a model of merges: every pair of pieces that together are a piece is merged, the piece of the best score first."""
    if any(piece.type == UNUSED for piece in model.pieces):
        raise ValueError("unused pieces in a model of kind bpe")
    known = {piece.text for piece in model.pieces} | {unk}
    if not model.escape_whitespaces and not known >= set(ids):
        raise ValueError("tokens that are no pieces, in a model without escape_whitespaces")
    tokens = [token if token in known else ABSENT + token for token in sorted(ids, key=ids.__getitem__)]
    tokens += [piece.text for piece in model.pieces if piece.text not in ids]
    if sum(len(piece.text) ** 2 for piece in model.pieces) > _MAX_SPLITS:
        raise ValueError("pieces that are too long")
    merges = sorted(_merges(model), key=lambda merge: (-merge[0], len(merge[1]), len(merge[2])))
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": unk,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": model.byte_fallback,
        "ignore_merges": False,
        "vocab": {token: number for number, token in enumerate(tokens)},
        "merges": [[left, right] for _, left, right in merges],
    }


def _merges(model: SentencePieceModel) -> Iterator[tuple[float, str, str]]:
    symbols = {piece.text for piece in model.pieces if piece.type == NORMAL}
    for piece in model.pieces:
        if piece.type == NORMAL:
            for at in range(1, len(piece.text)):
                left, right = piece.text[:at], piece.text[at:]
                if left in symbols and right in symbols:
                    yield piece.score, left, right
