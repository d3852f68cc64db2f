"""Check of the JSON state of a tokenizer of the ``tokenizers`` library, which may come from an unknown author.

Everything that the library would take on trust is checked before the library parses the state: sizes, ids, scores, regular expressions and
what could make a text grow.
"""

import base64
import binascii
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from transom.data.tokenizer.split_patterns import check_pattern
from transom.errors import CheckpointError
from transom.files.limits import MAX_TOKEN_CHARACTERS, MAX_VOCAB_SIZE

MODELS = ("BPE", "WordPiece", "Unigram", "WordLevel")
MAX_PARTS = 100
"""Maximum number of normalizers, pre-tokenizers or decoders. Published ones have at most 8 of each, SentencePiece's rules 70."""

MAX_GROWTH = 32
"""Maximum factor by which all replacements of a normalizer or decoder together may lengthen a text."""

MAX_CHARSMAP_CHARACTERS = 2**20
"""Maximum length of a precompiled normalization table in base64; that of NFKC has 316,000 characters."""

_MAX_CHARSMAP_ENTRY = 128
"""Maximum number of bytes to which the table maps a character; the longest of NFKC has 33."""

_MAX_WORD_CHARACTERS = 500
"""Maximum of WordPiece's ``max_input_chars_per_word``, in which time is cubic; published tokenizers have 100."""

_LISTS = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "decoder": "decoders", "post_processor": "processors"}


def parts_of(state: dict[str, Any], name: str) -> Iterator[dict[str, Any]]:
    """Yield the parts of a state's normalizer, pre-tokenizer, decoder or post-processor, in order, and those within sequences.

    Raises:
        CheckpointError: a part is not a table with a type.
    """
    pending, n = [state.get(name)], 0
    while pending:
        part = pending.pop()
        if part is None:
            continue
        n += 1
        if not isinstance(part, dict) or not isinstance(part.get("type"), str) or n > MAX_PARTS:
            raise CheckpointError(f"{name}: expected at most {MAX_PARTS} tables with a type, found {part!r:.60}")
        if part["type"] == "Sequence":
            listed = part.get(_LISTS[name])
            if not isinstance(listed, list):
                raise CheckpointError(f"{name}: expected a list {_LISTS[name]} in a sequence, found {listed!r:.60}")
            pending += reversed(listed)
        else:
            yield part


def check_state(state: Any) -> dict[str, Any]:
    """Return a state of the library if it is harmless.

    Raises:
        CheckpointError: it has another form, or the library might hang, crash or use unbounded memory with it.
    """
    if not isinstance(state, dict) or not isinstance(model := state.get("model"), dict) or _model_type(model) not in MODELS:
        raise CheckpointError(f"expected a tokenizer of the tokenizers library with a model of type {', '.join(MODELS)}")
    known = _check_pieces(model)
    _check_model(model, known)
    _check_added_tokens(state, known)
    for name in ("normalizer", "decoder"):
        growth = 1.0
        for part in parts_of(state, name):
            growth *= _growth(part, name)
            if growth > MAX_GROWTH:
                raise CheckpointError(f"{name}: expected replacements that lengthen a text at most {MAX_GROWTH} times, found more")
    for part in parts_of(state, "pre_tokenizer"):
        if part["type"] == "Split":
            _check_regex(part.get("pattern"), "pre_tokenizer")
        if part["type"] == "FixedLength" and not _is_id(part.get("length"), 1, MAX_TOKEN_CHARACTERS):
            raise CheckpointError(f"pre_tokenizer: expected a length from 1 to {MAX_TOKEN_CHARACTERS:,}, found {part.get('length')!r:.60}")
    list(parts_of(state, "post_processor"))
    return state


def _model_type(model: dict[str, Any]) -> str:
    """Return the type of a model; files of early versions of the library lack it."""
    vocab = model.get("vocab")
    default = "Unigram" if isinstance(vocab, list) else "BPE" if "merges" in model else "WordPiece"
    return str(model.setdefault("type", default))


def _is_id(value: Any, least: int = 0, end: int = MAX_VOCAB_SIZE) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < end


def _check_pieces(model: dict[str, Any]) -> dict[str, int]:
    """Return the id of each piece of a model."""
    vocab = model.get("vocab")
    if model["type"] == "Unigram":
        if not isinstance(vocab, list) or not all(isinstance(each, list) and len(each) == 2 for each in vocab):
            raise CheckpointError("model.vocab: expected a list of pieces with scores")
        for piece, score in vocab:
            is_number = isinstance(score, int | float) and not isinstance(score, bool)
            if not is_number or not math.isfinite(score) or abs(score) > 1e6:
                raise CheckpointError(f"model.vocab: expected finite scores, found {score!r:.40} of {piece!r:.40}")
        pairs = [(piece, number) for number, (piece, _) in enumerate(vocab)]
    elif isinstance(vocab, dict):
        pairs = list(vocab.items())
    else:
        raise CheckpointError("model.vocab: expected a table of pieces and ids")
    for piece, number in pairs:
        if not isinstance(piece, str) or len(piece) > MAX_TOKEN_CHARACTERS:
            raise CheckpointError(f"model.vocab: expected pieces of at most {MAX_TOKEN_CHARACTERS:,} characters, found {piece!r:.60}")
        if not _is_id(number):
            raise CheckpointError(f"model.vocab: expected ids below {MAX_VOCAB_SIZE:,}, found {number!r:.40} of {piece!r:.40}")
    if not pairs or len(pairs) > MAX_VOCAB_SIZE:
        raise CheckpointError(f"model.vocab: expected 1 to {MAX_VOCAB_SIZE:,} pieces, found {len(pairs):,}")
    known = dict(pairs)
    if len(known) < len(pairs) or len(set(known.values())) < len(pairs):
        raise CheckpointError("model.vocab: expected distinct pieces and ids, found duplicates")
    return known


def _check_model(model: dict[str, Any], known: dict[str, int]) -> None:
    """Check the settings of a model."""
    kind = model["type"]
    if model.get("dropout"):
        raise CheckpointError(f"model.dropout: expected none, since encoding must be reproducible, found {model['dropout']!r:.40}")
    unknown = model.get("unk_token")
    if kind in ("WordPiece", "WordLevel") and unknown not in known:
        raise CheckpointError(f"model.unk_token: expected a piece of the vocabulary, found {unknown!r:.60}")
    if kind == "Unigram" and not _is_id(model.get("unk_id"), end=len(known)):
        raise CheckpointError(f"model.unk_id: expected the id of a piece, found {model.get('unk_id')!r:.60}")
    if kind == "WordPiece" and not _is_id(model.setdefault("max_input_chars_per_word", 100), 1, _MAX_WORD_CHARACTERS + 1):
        found = model["max_input_chars_per_word"]
        raise CheckpointError(f"model.max_input_chars_per_word: expected 1 to {_MAX_WORD_CHARACTERS}, found {found!r:.40}")
    if kind == "BPE":
        merges = model.get("merges")
        if not isinstance(merges, list) or len(merges) > MAX_VOCAB_SIZE:
            raise CheckpointError(f"model.merges: expected a list of at most {MAX_VOCAB_SIZE:,} merges")
        model["merges"] = [_merge(each, number) for number, each in enumerate(merges, 1)]
        prefix = model.get("continuing_subword_prefix") or ""
        for number, (left, right) in enumerate(model["merges"], 1):
            if left not in known or right not in known or left + right.removeprefix(prefix) not in known:
                raise CheckpointError(f"model.merges: expected merges of pieces into pieces, found {left!r:.40} + {right!r:.40} ({number})")
        if len({(left, right) for left, right in model["merges"]}) < len(merges):
            raise CheckpointError("model.merges: expected distinct merges, found duplicates")


def _merge(value: Any, number: int) -> list[str]:
    """Return the two pieces of a merge, which older files write as one string with a space."""
    found = value.split(" ") if isinstance(value, str) else value
    if not isinstance(found, list) or len(found) != 2 or not all(isinstance(piece, str) and piece for piece in found):
        raise CheckpointError(f"model.merges: expected two pieces, found {value!r:.60} as merge {number}")
    return found


def _check_added_tokens(state: dict[str, Any], known: dict[str, int]) -> None:
    """Check that added tokens collide neither with each other nor with the vocabulary."""
    added = state.setdefault("added_tokens", [])
    if not isinstance(added, list) or len(added) > MAX_VOCAB_SIZE:
        raise CheckpointError("added_tokens: expected a list of tokens")
    ids, owners = dict[str, int](), {number: piece for piece, number in known.items()}
    for token in added:
        content = token.get("content") if isinstance(token, dict) else None
        if not isinstance(content, str) or not 0 < len(content) <= MAX_TOKEN_CHARACTERS or not _is_id(token.get("id")):
            raise CheckpointError(f"added_tokens: expected a content and an id below {MAX_VOCAB_SIZE:,}, found {token!r:.80}")
        if content in ids or known.get(content, token["id"]) != token["id"] or owners.setdefault(token["id"], content) != content:
            raise CheckpointError(f"added_tokens: expected distinct ids and contents, found {content!r:.40} with id {token['id']} again")
        ids[content] = token["id"]


def _growth(part: dict[str, Any], name: str) -> float:
    """Return the factor by which a normalizer or decoder may lengthen a text."""
    kind = part["type"]
    if kind == "Replace":
        content, pattern = part.get("content"), part.get("pattern")
        if not isinstance(content, str):
            raise CheckpointError(f"{name}: expected a replacement, found {content!r:.60}")
        return max(1.0, len(content) / _check_regex(pattern, name))
    if kind == "Prepend":
        prefix = part.get("prepend")
        if not isinstance(prefix, str) or len(prefix) > MAX_TOKEN_CHARACTERS:
            raise CheckpointError(f"{name}: expected a prefix of at most {MAX_TOKEN_CHARACTERS:,} characters, found {prefix!r:.60}")
    if kind == "Precompiled":
        _check_charsmap(part.get("precompiled_charsmap"), name)
    return 1.0


def _check_regex(pattern: Any, where: str) -> int:
    """Check a pattern, which is a string or a regular expression, and return the least number of characters that it replaces."""
    if isinstance(pattern, dict) and len(pattern) == 1:
        ((kind, text),) = pattern.items()
        if isinstance(text, str) and text and kind == "String":
            return len(text)
        if isinstance(text, str) and text and kind == "Regex":
            try:
                check_pattern(text)
            except ValueError as error:
                raise CheckpointError(f"{where}: expected a regular expression without nested quantifiers, found {error}") from error
            return 1
    raise CheckpointError(f"{where}: expected a pattern with a String or a Regex, found {pattern!r:.60}")


def _check_charsmap(value: Any, where: str) -> None:
    """Check the table of a precompiled normalizer: the size of its trie, the trie, and strings that end with NUL."""
    if not isinstance(value, str) or len(value) > MAX_CHARSMAP_CHARACTERS:
        raise CheckpointError(f"{where}: expected a precompiled_charsmap of at most {MAX_CHARSMAP_CHARACTERS:,} characters")
    try:
        table = base64.b64decode(value, validate=True)
        table[4 + int.from_bytes(table[:4], "little") :].decode()
    except (binascii.Error, ValueError) as error:
        raise CheckpointError(f"{where}: expected a precompiled_charsmap in base64 with UTF-8 strings ({error})") from error
    n_trie = int.from_bytes(table[:4], "little")
    strings = table[4 + n_trie :]
    if len(table) < 8 or n_trie % 4 or 4 + n_trie > len(table) or max(map(len, strings.split(b"\0"))) > _MAX_CHARSMAP_ENTRY:
        raise CheckpointError(f"{where}: expected a precompiled_charsmap of a trie and short strings, found damaged content")
    if not _is_trie(table[4 : 4 + n_trie], strings):
        raise CheckpointError(f"{where}: expected a precompiled_charsmap with a trie, found damaged content")


def _is_trie(content: bytes, strings: bytes) -> bool:
    """Return whether no walk through a double-array trie leaves it, and all its values are starts of strings.

    A walk goes from the unit at q to q ^ offset ^ byte. The library does not check these indices.
    """
    units = np.frombuffer(content, "<u4").astype(np.int64)
    nodes = np.flatnonzero(units < 2**31)
    offsets = (units[nodes] >> 10) << ((units[nodes] & (1 << 9)) >> 6)
    reached = nodes ^ offsets
    if not len(units) or units[0] >= 2**31 or ((reached | 0xFF) >= len(units)).any():
        return False
    values = units[reached[(units[nodes] >> 8) & 1 == 1]] & (2**31 - 1)
    if (values > len(strings)).any():
        return False
    text = np.frombuffer(strings + b"\0", np.uint8)
    return not ((text[values] & 0xC0) == 0x80).any()
