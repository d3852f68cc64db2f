"""Check the JSON of a ``tokenizers`` tokenizer from an unknown origin before the library reads it.

The library stops the process at some invalid values and never ends at others. Only components with known fields are accepted.
"""

import base64
import binascii
import math
from collections.abc import Callable, Mapping
from typing import Any

from transom.data.tokenizer.split_patterns import check_pattern
from transom.exchange.tokenizer.charsmap import read_charsmap
from transom.exchange.tokenizer.library_json import Json
from transom.files.limits import MAX_TOKEN_CHARACTERS, MAX_VOCAB_SIZE

Check = Callable[[Any, str], None]
"""Check of a value, which has a name for messages. It raises ValueError with a noun phrase."""

_MAX_STEPS = 100
_MAX_WORD_CHARACTERS = 10_000
_MAX_SCORE = 1e30
_BEHAVIORS = ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")


def _is(*types: type) -> Check:
    def check(value: Any, name: str) -> None:
        if type(value) not in types:
            raise ValueError(f"{name} = {value!r:.60}")

    return check


def _one_of(*values: str) -> Check:
    def check(value: Any, name: str) -> None:
        if value not in values:
            raise ValueError(f"{name} = {value!r:.60}")

    return check


def _pattern(value: Any, name: str) -> None:
    if not isinstance(value, dict) or len(value) != 1 or not isinstance(text := value.get("String", value.get("Regex")), str) or not text:
        raise ValueError(f"{name} = {value!r:.60}")
    if "Regex" in value:
        check_pattern(text)


def _text(value: Any, name: str) -> None:
    if not isinstance(value, str) or len(value) > MAX_TOKEN_CHARACTERS:
        raise ValueError(f"{name} = {value!r:.60}")


def _character(value: Any, name: str) -> None:
    if not isinstance(value, str) or len(value) != 1:
        raise ValueError(f"{name} = {value!r:.60}")


def _count(value: Any, name: str) -> None:
    if type(value) is not int or not 0 <= value <= 2**16:
        raise ValueError(f"{name} = {value!r:.60}")


def _word_length(value: Any, name: str) -> None:
    if type(value) is not int or not 0 < value <= _MAX_WORD_CHARACTERS:
        raise ValueError(f"{name} = {value!r:.60}")


def _charsmap(value: Any, name: str) -> None:
    try:
        content = base64.b64decode(value, validate=True) if isinstance(value, str) else b""
    except binascii.Error:
        content = b""
    read_charsmap(content)


def _token_and_id(value: Any, name: str) -> None:
    if not isinstance(value, list) or len(value) != 2 or not isinstance(value[0], str) or type(value[1]) is not int:
        raise ValueError(f"{name} = {value!r:.60}")


_flag, _optional_flag = _is(bool), _is(bool, type(None))
_METASPACE: dict[str, Check] = {
    "replacement": _character,
    "prepend_scheme": _one_of("always", "first", "never"),
    "split": _flag,
    "add_prefix_space": _flag,
    "str_rep": _character,
}
_REPLACE: dict[str, Check] = {"pattern": _pattern, "content": _text}
_BYTE_LEVEL: dict[str, Check] = {"add_prefix_space": _flag, "trim_offsets": _flag, "use_regex": _flag}

_COMPONENTS: dict[str, dict[str, dict[str, Check]]] = {
    "normalizer": {
        **{name: {} for name in ("NFC", "NFD", "NFKC", "NFKD", "Nmt", "Lowercase", "StripAccents", "ByteLevel")},
        "Strip": {"strip_left": _flag, "strip_right": _flag},
        "Prepend": {"prepend": _text},
        "Replace": _REPLACE,
        "BertNormalizer": {
            "clean_text": _flag,
            "handle_chinese_chars": _flag,
            "strip_accents": _optional_flag,
            "lowercase": _flag,
        },
        "Precompiled": {"precompiled_charsmap": _charsmap},
    },
    "pre_tokenizer": {
        **{name: {} for name in ("BertPreTokenizer", "Whitespace", "WhitespaceSplit")},
        "ByteLevel": _BYTE_LEVEL,
        "Metaspace": _METASPACE,
        "Split": {"pattern": _pattern, "behavior": _one_of(*_BEHAVIORS), "invert": _flag},
        "Punctuation": {"behavior": _one_of(*_BEHAVIORS)},
        "Digits": {"individual_digits": _flag},
    },
    "post_processor": {
        "ByteLevel": _BYTE_LEVEL,
        "BertProcessing": {"sep": _token_and_id, "cls": _token_and_id},
        "RobertaProcessing": {"sep": _token_and_id, "cls": _token_and_id, "trim_offsets": _flag, "add_prefix_space": _flag},
        "TemplateProcessing": {"single": _is(list), "pair": _is(list), "special_tokens": _is(dict)},
    },
    "decoder": {
        **{name: {} for name in ("ByteFallback", "Fuse")},
        "ByteLevel": _BYTE_LEVEL,
        "WordPiece": {"prefix": _text, "cleanup": _flag},
        "Metaspace": _METASPACE,
        "BPEDecoder": {"suffix": _text},
        "Replace": _REPLACE,
        "Strip": {"content": _character, "start": _count, "stop": _count},
    },
}
"""Fields of each component by part of the tokenizer and type."""

_optional_text = _is(str, type(None))
_MODELS: dict[str, dict[str, Check]] = {
    "BPE": {
        **dict.fromkeys(("fuse_unk", "byte_fallback", "ignore_merges"), _flag),
        **dict.fromkeys(("unk_token", "continuing_subword_prefix", "end_of_word_suffix"), _optional_text),
    },
    "WordPiece": {"unk_token": _text, "continuing_subword_prefix": _text, "max_input_chars_per_word": _word_length},
    "WordLevel": {"unk_token": _text},
    "Unigram": {"byte_fallback": _flag},
}
"""Fields of each model apart from the vocabulary and merges. Those of subword models may be missing."""

_SEQUENCES = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "post_processor": "processors", "decoder": "decoders"}
_MAY_LACK = {"prepend_scheme", "split", "add_prefix_space", "str_rep", "use_regex"}
"""Fields that older files lack."""


def check_component(part: str, value: Any, n_steps: int = 0) -> None:
    """Check a part of a tokenizer apart from its model.

    Args:
        part: ``normalizer``, ``pre_tokenizer``, ``post_processor`` or ``decoder``.
        value: its JSON value, None for no such part.
        n_steps: number of sequences around it.

    Raises:
        ValueError: the value is none that the library reads in bounded time. The message is a noun phrase.
    """
    if value is None:
        return
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "Sequence":
        steps = value.get(_SEQUENCES[part])
        if not isinstance(steps, list) or len(steps) > _MAX_STEPS or n_steps > 3 or None in steps:
            raise ValueError(f"a {part} with an invalid sequence")
        for step in steps:
            check_component(part, step, n_steps + 1)
        return
    if not isinstance(kind, str) or (fields := _COMPONENTS[part].get(kind)) is None:
        raise ValueError(f"a {part} of type {kind!r:.60}")
    for name, check in fields.items():
        if name in value or name not in _MAY_LACK:
            check(value.get(name), f"{part}.{name}")


def check_model(model: Any) -> dict[str, int]:
    """Check the model of a tokenizer, and return its token ids.

    Raises:
        ValueError: the value is none that the library reads in bounded time. The message is a noun phrase.
    """
    kind = model.get("type", _legacy_type(model)) if isinstance(model, dict) else None
    if not isinstance(kind, str) or kind not in _MODELS:
        raise ValueError(f"a model of type {kind!r:.60}")
    for name, check in _MODELS[kind].items():
        if name in model or kind.startswith("Word"):
            check(model.get(name), f"model.{name}")
    if kind == "Unigram":
        return _check_unigram(model)
    ids = check_ids(model.get("vocab"))
    unknown = model.get("unk_token")
    if not (unknown is None and kind == "BPE") and unknown not in ids:
        raise ValueError(f"the unknown token {unknown!r:.60}, which is not in the vocabulary")
    if kind == "BPE":
        _check_merges(model, ids)
    return ids


def _legacy_type(model: Mapping[str, Any]) -> str | None:
    """Return the type of a model of an older file, which does not name it."""
    if "merges" in model:
        return "BPE"
    return "WordPiece" if "max_input_chars_per_word" in model else "Unigram" if isinstance(model.get("vocab"), list) else None


def check_ids(vocab: Any, what: str = "vocabulary") -> dict[str, int]:
    """Return a vocabulary, of which each token has one of the ids 0 to n - 1.

    Args:
        vocab: a JSON value.
        what: noun for the vocabulary in messages.

    Raises:
        ValueError: the value is no such vocabulary. The message is a noun phrase.
    """
    if not isinstance(vocab, dict) or not vocab or len(vocab) > MAX_VOCAB_SIZE:
        raise ValueError(f"a {what} of {len(vocab) if isinstance(vocab, dict) else 0:,} tokens")
    seen: set[int] = set()
    for token, number in vocab.items():
        if type(number) is not int or not 0 <= number < len(vocab):
            raise ValueError(f"the id {number!r:.40} of token {token!r:.60} in a {what} of {len(vocab):,} tokens")
        if number in seen:
            raise ValueError(f"the id {number:,} twice in a {what}")
        if len(token) > MAX_TOKEN_CHARACTERS:
            raise ValueError(f"a token of {len(token):,} characters")
        seen.add(number)
    return vocab


def _check_unigram(model: Mapping[str, Any]) -> dict[str, int]:
    vocab, unknown = model.get("vocab"), model.get("unk_id")
    if not isinstance(vocab, list) or not 0 < len(vocab) <= MAX_VOCAB_SIZE:
        raise ValueError(f"a vocabulary of {len(vocab) if isinstance(vocab, list) else 0:,} pieces")
    ids: dict[str, int] = {}
    for number, item in enumerate(vocab):
        match item:
            case [str(token), int() | float() as score] if not isinstance(score, bool):
                if not math.isfinite(score) or abs(score) > _MAX_SCORE:
                    raise ValueError(f"the score {score} of piece {number:,}")
                if not 0 < len(token) <= MAX_TOKEN_CHARACTERS or ids.setdefault(token, number) != number:
                    raise ValueError(f"piece {number:,} ({token!r:.60}) twice, empty or too long")
            case _:
                raise ValueError(f"{item!r:.60} as piece {number:,}")
    if unknown is not None and (type(unknown) is not int or not 0 <= unknown < len(vocab)):
        raise ValueError(f"unk_id = {unknown!r:.40} of {len(vocab):,} pieces")
    return ids


def _check_merges(model: Mapping[str, Any], ids: Mapping[str, int]) -> None:
    merges, prefix, dropout = model.get("merges"), model.get("continuing_subword_prefix") or "", model.get("dropout")
    if dropout is not None and dropout != 0.0:
        raise ValueError(f"dropout = {dropout!r:.40}")
    if not isinstance(merges, list) or len(merges) > 2 * MAX_VOCAB_SIZE:
        raise ValueError(f"{type(merges).__name__} as merges")
    for rank, merge in enumerate(merges, 1):
        parts = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(part, str) and part for part in parts):
            raise ValueError(f"{merge!r:.60} as merge {rank:,}")
        left, right = parts
        if left not in ids or right not in ids or left + right.removeprefix(prefix) not in ids:
            raise ValueError(f"merge {rank:,} ({left!r:.40} + {right!r:.40}) with a token that is not in the vocabulary")
        if not right.removeprefix(prefix):
            raise ValueError(f"merge {rank:,} ({left!r:.40} + {right!r:.40}), which never ends")


def check_added_tokens(tokens: Any, ids: Mapping[str, int]) -> dict[str, int]:
    """Return the ids of the vocabulary and of added tokens, which the library numbers in order.

    Args:
        tokens: added tokens, a JSON value.
        ids: token ids of the model.

    Raises:
        ValueError: the library would number a token otherwise. The message is a noun phrase.
    """
    if not isinstance(tokens, list) or len(tokens) > MAX_VOCAB_SIZE:
        raise ValueError(f"{type(tokens).__name__} as added_tokens")
    all_ids, following, seen = dict(ids), len(ids), set[str]()
    for token in tokens:
        if not isinstance(token, dict) or not isinstance(content := token.get("content"), str) or not content or content in seen:
            raise ValueError(f"{token!r:.80} as added token")
        for name in ("single_word", "lstrip", "rstrip", "normalized", "special"):
            _flag(token.get(name), f"{name} of {content!r:.60}")
        if len(content) > MAX_TOKEN_CHARACTERS:
            raise ValueError(f"an added token of {len(content):,} characters")
        expected = ids.get(content, following)
        if type(token.get("id")) is not int or token["id"] != expected:
            raise ValueError(f"the id {token.get('id')!r:.40} of the added token {content!r:.60}, whose id is {expected:,}")
        following = max(following, expected + 1)
        seen.add(content)
        all_ids[content] = expected
    return all_ids


def check_library(library: Json) -> dict[str, int]:
    """Check a whole tokenizer, and return its token ids.

    Raises:
        ValueError: the value is none that the library reads in bounded time. The message is a noun phrase.
    """
    for part in _COMPONENTS:
        check_component(part, library.get(part))
    return check_added_tokens(library.get("added_tokens", []), check_model(library.get("model")))
