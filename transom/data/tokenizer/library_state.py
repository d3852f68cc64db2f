"""Check of the JSON of a tokenizer of the ``tokenizers`` library, which may come from an unknown author.

Every tokenizer passes it before the library parses the JSON, whether a run, a recipe or a folder to import holds it. The library stops the
process at some invalid values, never ends at others, and may make a text grow without bound. Only components with known fields are
accepted. All errors here are ``ValueError``, and their messages are noun phrases.
"""

import base64
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from transom.data.tokenizer.charsmap import MAX_CHARSMAP_GROWTH, read_charsmap
from transom.data.tokenizer.split_patterns import check_pattern
from transom.files.limits import MAX_TOKEN_CHARACTERS, MAX_VOCAB_SIZE

MAX_PARTS = 100
"""Maximum number of normalizers, pre-tokenizers or decoders. Published ones have at most 8 of each, SentencePiece's rules 70."""

MAX_GROWTH = 32
"""Maximum factor by which all replacements of a normalizer or decoder together may lengthen a text."""

_MAX_OTHER_GROWTH = 2**11
"""Maximum factor by which all other components of one kind together may lengthen a text. XLNet's normalizers have 1,152, SentencePiece's
rules up to 1,536."""

GROWTH = {
    "NFC": 3,
    "NFD": 4,
    "NFKC": 18,
    "NFKD": 18,
    "Lowercase": 2,
    "BertNormalizer": 3,
    "Precompiled": MAX_CHARSMAP_GROWTH,
    "ByteLevel": 5,
    "Metaspace": 2,
    "BPEDecoder": 2,
    "CTC": 2,
}
"""Maximum factor by which a component lengthens a text: that of the worst character, and a space in front of a word."""

_MAX_NESTED = 4
_MAX_SCORE = 1e6

_MAX_WORD_CHARACTERS = 500
"""Maximum of WordPiece's ``max_input_chars_per_word``, in which time is cubic; published tokenizers have 100."""


class _Field(NamedTuple):
    """Values of a field that are accepted.

    Attributes:
        expected: noun phrase for messages.
        accepts: return whether a value is accepted. It may raise ValueError with a more precise message.
        may_lack: True if the field may be missing, as in older files.
    """

    expected: str
    accepts: Callable[[Any], bool]
    may_lack: bool = False

    def check(self, key: str, table: Mapping[str, Any], name: str) -> None:
        """Check the value of a key of a component, model or token, which has a name for messages."""
        value = table.get(key)
        if not (self.may_lack and key not in table) and not self.accepts(value):
            raise ValueError(f"{name}.{key} = {value!r:.60} in place of {self.expected}")

    def or_none(self) -> "_Field":
        """Return a field that may also be missing or null."""
        return _Field(f"{self.expected} or null", lambda value: value is None or self.accepts(value), True)


def _is_pattern(value: Any) -> bool:
    match value:
        case {"String": str() as text, **others}:
            return text != "" and not others
        case {"Regex": str() as text, **others} if text and not others:
            check_pattern(text)
            return True
    return False


def _is_charsmap(value: Any) -> bool:
    try:
        content = base64.b64decode(value, validate=True) if isinstance(value, str) else None
    except ValueError:
        return False
    return content is not None and read_charsmap(content) is not None


def _is_token_and_id(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and type(value[1]) is int


def _one_of(*values: str) -> _Field:
    return _Field(f"one of {', '.join(values)}", lambda value: isinstance(value, str) and value in values)


def _number(least: int, most: int) -> _Field:
    return _Field(f"a number from {least:,} to {most:,}", lambda value: type(value) is int and least <= value <= most)


_PATTERN = _Field("a pattern with a String or a Regex", _is_pattern)
_CHARSMAP = _Field("character rules in base64", _is_charsmap)
_TOKEN_AND_ID = _Field("a token with its id", _is_token_and_id)
_TEXT = _Field(
    f"a text of at most {MAX_TOKEN_CHARACTERS:,} characters", lambda value: isinstance(value, str) and len(value) <= MAX_TOKEN_CHARACTERS
)
_CHARACTER = _Field("one character", lambda value: isinstance(value, str) and len(value) == 1)
_FLAG = _Field("true or false", lambda value: type(value) is bool)
_NEWER_FLAG = _FLAG._replace(may_lack=True)
_BEHAVIOR = _one_of("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")
_LIST = _Field(f"a list of at most {MAX_PARTS} parts", lambda value: isinstance(value, list) and len(value) <= MAX_PARTS)
_TABLE = _Field(f"a table of at most {MAX_PARTS} values", lambda value: isinstance(value, dict) and len(value) <= MAX_PARTS)
_COUNT, _TOKEN_LENGTH = _number(0, 2**16), _number(1, MAX_TOKEN_CHARACTERS)

_METASPACE = {
    "replacement": _CHARACTER,
    "prepend_scheme": _one_of("always", "first", "never")._replace(may_lack=True),
    "split": _NEWER_FLAG,
    "add_prefix_space": _NEWER_FLAG,
    "str_rep": _CHARACTER._replace(may_lack=True),
}
_REPLACE = {"pattern": _PATTERN, "content": _TEXT}
_BYTE_LEVEL = {"add_prefix_space": _FLAG, "trim_offsets": _FLAG, "use_regex": _NEWER_FLAG}
_BERT_PROCESSING = {"sep": _TOKEN_AND_ID, "cls": _TOKEN_AND_ID}

_COMPONENTS: dict[str, dict[str, dict[str, _Field]]] = {
    "normalizer": {
        **{name: {} for name in ("NFC", "NFD", "NFKC", "NFKD", "Nmt", "Lowercase", "StripAccents", "ByteLevel")},
        "Strip": {"strip_left": _FLAG, "strip_right": _FLAG},
        "Prepend": {"prepend": _TEXT},
        "Replace": _REPLACE,
        "BertNormalizer": {
            **dict.fromkeys(("clean_text", "handle_chinese_chars", "lowercase"), _FLAG),
            "strip_accents": _FLAG.or_none(),
        },
        "Precompiled": {"precompiled_charsmap": _CHARSMAP},
    },
    "pre_tokenizer": {
        **{name: {} for name in ("BertPreTokenizer", "Whitespace", "WhitespaceSplit", "UnicodeScripts")},
        "ByteLevel": _BYTE_LEVEL,
        "Metaspace": _METASPACE,
        "Split": {"pattern": _PATTERN, "behavior": _BEHAVIOR, "invert": _FLAG},
        "Punctuation": {"behavior": _BEHAVIOR._replace(may_lack=True)},
        "Digits": {"individual_digits": _FLAG},
        "CharDelimiterSplit": {"delimiter": _CHARACTER},
        "FixedLength": {"length": _TOKEN_LENGTH._replace(may_lack=True)},
    },
    "post_processor": {
        "ByteLevel": _BYTE_LEVEL,
        "BertProcessing": _BERT_PROCESSING,
        "RobertaProcessing": {**_BERT_PROCESSING, "trim_offsets": _NEWER_FLAG, "add_prefix_space": _NEWER_FLAG},
        "TemplateProcessing": {"single": _LIST, "pair": _LIST, "special_tokens": _TABLE},
    },
    "decoder": {
        **{name: {} for name in ("ByteFallback", "Fuse")},
        "ByteLevel": _BYTE_LEVEL,
        "WordPiece": {"prefix": _TEXT, "cleanup": _FLAG},
        "Metaspace": _METASPACE,
        "BPEDecoder": {"suffix": _TEXT},
        "Replace": _REPLACE,
        "Strip": {"content": _CHARACTER, "start": _COUNT, "stop": _COUNT},
        "CTC": {"pad_token": _TEXT, "word_delimiter_token": _TEXT, "cleanup": _FLAG},
    },
}
"""Fields of each component by part of the tokenizer and type."""

_MODELS: dict[str, dict[str, _Field]] = {
    "BPE": {
        **dict.fromkeys(("fuse_unk", "byte_fallback", "ignore_merges"), _NEWER_FLAG),
        **dict.fromkeys(("unk_token", "continuing_subword_prefix", "end_of_word_suffix"), _TEXT.or_none()),
    },
    "WordPiece": {
        "unk_token": _TEXT,
        "continuing_subword_prefix": _TEXT,
        "max_input_chars_per_word": _number(1, _MAX_WORD_CHARACTERS),
    },
    "WordLevel": {"unk_token": _TEXT},
    "Unigram": {"byte_fallback": _NEWER_FLAG},
}
"""Fields of each model apart from the vocabulary and merges."""

_DROPOUT = _Field("0 (encoding must be reproducible)", lambda value: type(value) in (int, float) and value == 0).or_none()

_ADDED_TOKEN = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), _FLAG)
_SEQUENCES = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "post_processor": "processors", "decoder": "decoders"}


def check_state(state: Any, gaps: bool = True) -> dict[str, int]:
    """Check a whole tokenizer, and return the ids of the pieces of its model.

    Older forms are replaced in place by the present ones: a model without a type, merges as strings, no added tokens.

    Args:
        state: JSON value of the tokenizer.
        gaps: accept ids of the model that are not 0 to n - 1, which published tokenizers may have.

    Raises:
        ValueError: the value is none that the library can use in bounded time and memory. The message is a noun phrase.
    """
    if not isinstance(state, dict):
        raise ValueError(f"{state!r:.60} in place of a table with a model")
    for name in _COMPONENTS:
        for part in parts_of(state, name):
            _check_part(part, name)
        _check_growth(parts_of(state, name), name)
    ids = _check_model(state.get("model"), gaps)
    check_added_tokens(state.setdefault("added_tokens", []), ids)
    return ids


def parts_of(state: Mapping[str, Any], name: str) -> Iterator[dict[str, Any]]:
    """Yield the parts of a tokenizer's normalizer, pre-tokenizer, decoder or post-processor, in order, and those within sequences.

    Raises:
        ValueError: there are too many, or one is not a table with a type. The message is a noun phrase.
    """
    pending, n = [] if state.get(name) is None else [(state[name], 0)], 0
    while pending:
        (part, depth), n = pending.pop(), n + 1
        if n > MAX_PARTS:
            raise ValueError(f"a {name} with a sequence of more than {MAX_PARTS} parts")
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise ValueError(f"{part!r:.60} in place of a {name} with a type")
        if part["type"] == "Sequence":
            steps = part.get(_SEQUENCES[name])
            if not isinstance(steps, list) or depth == _MAX_NESTED:
                raise ValueError(f"a {name} with a sequence without a list of parts, or more than {_MAX_NESTED} nested sequences")
            pending += [(step, depth + 1) for step in reversed(steps)]
        else:
            yield part


def _check_part(part: Mapping[str, Any], name: str) -> None:
    """Check the fields of a part that is no sequence."""
    if (fields := _COMPONENTS[name].get(part["type"])) is None:
        raise ValueError(f"a {name} of type {part['type']!r:.60}")
    for key, field in fields.items():
        field.check(key, part, name)


def _check_growth(parts: Iterator[Mapping[str, Any]], name: str) -> None:
    """Check by which factor parts in order may lengthen a text: a hundred that double it would fill any memory."""
    replacing, others = 1.0, 1
    for part in parts:
        others *= GROWTH.get(part["type"], 1)
        if part["type"] == "Replace":
            text, regex = part["pattern"].get("String", " "), part["pattern"].get("Regex")
            replacing *= max(1.0, len(part["content"]) / len(text))
            others *= 1 if regex is None or check_pattern(regex) else 2  # inserted between all characters
    if replacing > MAX_GROWTH:
        raise ValueError(f"a {name} with replacements that lengthen a text more than {MAX_GROWTH} times")
    if others > _MAX_OTHER_GROWTH:
        raise ValueError(f"a {name} that may lengthen a text more than {_MAX_OTHER_GROWTH:,} times")


def _check_model(model: Any, gaps: bool) -> dict[str, int]:
    """Check a model, and return the ids of its pieces."""
    kind = model.setdefault("type", _legacy_type(model)) if isinstance(model, dict) else None
    if not isinstance(kind, str) or kind not in _MODELS:
        raise ValueError(f"a model of type {kind!r:.60} in place of {', '.join(_MODELS)}")
    if kind == "WordPiece":
        model.setdefault("max_input_chars_per_word", 100)
    for key, field in (_MODELS[kind] | {"dropout": _DROPOUT}).items():
        field.check(key, model, "model")
    if kind == "Unigram":
        return _check_unigram(model)
    ids = check_ids(model.get("vocab"), gaps=gaps)
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
    return "WordPiece" if "continuing_subword_prefix" in model else "Unigram" if isinstance(model.get("vocab"), list) else None


def check_ids(vocab: Any, what: str = "vocabulary", gaps: bool = False) -> dict[str, int]:
    """Return a vocabulary, of which each token has one of the ids 0 to n - 1.

    Args:
        vocab: a JSON value.
        what: noun for the vocabulary in messages.
        gaps: accept greater ids, too.

    Raises:
        ValueError: the value is no such vocabulary. The message is a noun phrase.
    """
    if not isinstance(vocab, dict) or not 0 < len(vocab) <= MAX_VOCAB_SIZE:
        raise ValueError(f"a {what} of {len(vocab) if isinstance(vocab, dict) else 0:,} tokens")
    end = MAX_VOCAB_SIZE if gaps else len(vocab)
    seen: set[int] = set()
    for token, number in vocab.items():
        if type(number) is not int or not 0 <= number < end:
            raise ValueError(f"the id {number!r:.40} of token {token!r:.60} in a {what}, in place of 0 to {end - 1:,}")
        if number in seen:
            raise ValueError(f"the id {number:,} twice in a {what}")
        if type(token) is not str or len(token) > MAX_TOKEN_CHARACTERS:
            raise ValueError(f"a token of more than {MAX_TOKEN_CHARACTERS:,} characters, {token!r:.60}")
        seen.add(number)
    return vocab


def _check_unigram(model: Mapping[str, Any]) -> dict[str, int]:
    vocab, unknown = model.get("vocab"), model.get("unk_id")
    if not isinstance(vocab, list) or not 0 < len(vocab) <= MAX_VOCAB_SIZE:
        raise ValueError(f"a vocabulary of {len(vocab) if isinstance(vocab, list) else 0:,} pieces")
    ids: dict[str, int] = {}
    for number, item in enumerate(vocab):
        if not isinstance(item, list) or len(item) != 2 or type(item[0]) is not str or type(item[1]) not in (int, float):
            raise ValueError(f"{item!r:.60} as piece {number:,}, in place of a piece and its score")
        token, score = item
        if not abs(score) <= _MAX_SCORE:
            raise ValueError(f"the score {score!r:.40} of piece {number:,} ({token!r:.60})")
        if not 0 < len(token) <= MAX_TOKEN_CHARACTERS or ids.setdefault(token, number) != number:
            raise ValueError(f"piece {number:,} ({token!r:.60}) twice, empty or of more than {MAX_TOKEN_CHARACTERS:,} characters")
    if type(unknown) is not int or not 0 <= unknown < len(vocab):
        raise ValueError(f"unk_id = {unknown!r:.40} of {len(vocab):,} pieces")
    return ids


def _check_merges(model: dict[str, Any], ids: Mapping[str, int]) -> None:
    """Check merges, and write those of older files as lists in place of strings with a space."""
    merges, prefix = model.get("merges"), model.get("continuing_subword_prefix") or ""
    if not isinstance(merges, list) or len(merges) > MAX_VOCAB_SIZE:
        raise ValueError(f"{merges!r:.60} in place of a list of at most {MAX_VOCAB_SIZE:,} merges")
    model["merges"] = [merge.split(" ") if type(merge) is str else merge for merge in merges]
    for rank, merge in enumerate(model["merges"], 1):
        if type(merge) is not list or len(merge) != 2 or type(merge[0]) is not str or type(merge[1]) is not str or "" in merge:
            raise ValueError(f"{merge!r:.60} as merge {rank:,}, in place of two pieces")
        left, right = merge
        if left not in ids or right not in ids or left + right.removeprefix(prefix) not in ids:
            raise ValueError(f"merge {rank:,} ({left!r:.40} + {right!r:.40}) with a token that is not in the vocabulary")
        if right == prefix:
            raise ValueError(f"merge {rank:,} ({left!r:.40} + {right!r:.40}), which never ends")
    if len(set(map(tuple, model["merges"]))) < len(merges):
        raise ValueError("a merge twice")


def check_added_tokens(tokens: Any, ids: Mapping[str, int]) -> dict[str, int]:
    """Return the ids of the vocabulary and of added tokens, which the library numbers in order.

    Args:
        tokens: added tokens, a JSON value.
        ids: token ids of the model.

    Raises:
        ValueError: the library would number a token otherwise. The message is a noun phrase.
    """
    if not isinstance(tokens, list) or len(tokens) > MAX_VOCAB_SIZE:
        raise ValueError(f"{tokens!r:.60} in place of a list of added tokens")
    all_ids, following, taken, seen = dict(ids), len(ids), set(ids.values()), set[str]()
    for token in tokens:
        content = token.get("content") if isinstance(token, dict) else None
        if not isinstance(content, str) or not 0 < len(content) <= MAX_TOKEN_CHARACTERS or content in seen:
            raise ValueError(f"{token!r:.80} as added token, twice or without a content of 1 to {MAX_TOKEN_CHARACTERS:,} characters")
        for key, field in _ADDED_TOKEN.items():
            field.check(key, token, f"added token {content!r:.60}")
        expected = ids.get(content, following)
        if type(token.get("id")) is not int or token["id"] != expected:
            raise ValueError(f"the id {token.get('id')!r:.40} of the added token {content!r:.60}, whose id is {expected:,}")
        if expected >= MAX_VOCAB_SIZE or (content not in ids and expected in taken):
            raise ValueError(f"the id {expected:,} of the added token {content!r:.60}, which another token has")
        following += content not in ids
        seen.add(content)
        all_ids[content] = expected
    return all_ids
