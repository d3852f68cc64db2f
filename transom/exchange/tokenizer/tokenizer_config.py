"""Read the fields of ``tokenizer_config.json`` and of the files beside it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from transom.exchange.tokenizer.library_json import Json
from transom.files.limits import MAX_TOKEN_CHARACTERS, MAX_VOCAB_SIZE

MAX_CHAT_TEMPLATE = 2**20
"""Maximum size in bytes of a template of conversations; published ones have fewer than 2**15."""

_MAX_LENGTH = 2**31
_MAX_PARTS = 100
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
_GENERATION = {"bos": "bos_token_id", "eos": "eos_token_id", "pad": "pad_token_id", "decoder_start": "decoder_start_token_id"}


@dataclass(frozen=True)
class TemplatePart:
    """A part of the sequence that a model reads.

    Attributes:
        text: ``A`` or ``B`` in place of the first or second text. None for a special token.
        token: id of the special token. None for a text.
        type_id: token type of the part.
    """

    text: Literal["A", "B"] | None
    token: int | None
    type_id: int


Template = tuple[TemplatePart, ...]


def token_of(value: Any, name: str) -> Json | None:
    """Return an added token that a file names by its text or by an object with flags, None for no token.

    Raises:
        ValueError: the value is neither. The message is a noun phrase.
    """
    if value is None:
        return None
    token = {"content": value} if isinstance(value, str) else value
    content = token.get("content") if isinstance(token, dict) else None
    if not isinstance(content, str) or not 0 < len(content) <= MAX_TOKEN_CHARACTERS:
        raise ValueError(f"{name} = {value!r:.60}")
    flags = {flag: token[flag] for flag in _FLAGS if flag in token}
    if not all(isinstance(flag, bool) for flag in flags.values()):
        raise ValueError(f"{name} with flags that are neither true nor false")
    return {"content": content, **flags}


def declared_tokens(value: Any) -> list[Json]:
    """Return the tokens of ``added_tokens_decoder`` with their ids, in the order of these.

    Raises:
        ValueError: the value has another form. The message is a noun phrase.
    """
    if value is None:
        return []
    if not isinstance(value, dict) or len(value) > MAX_VOCAB_SIZE:
        raise ValueError(f"added_tokens_decoder = {value!r:.60}")
    tokens: dict[int, Json] = {}
    for key, item in value.items():
        token = token_of(item, "added_tokens_decoder")
        if token is None or not (key.isascii() and key.isdecimal() and len(key) < 9) or int(key) in tokens:
            raise ValueError(f"the id {key!r:.40} in added_tokens_decoder")
        tokens[int(key)] = {"id": int(key), **token}
    return [token for _, token in sorted(tokens.items())]


def legacy_tokens(value: Mapping[str, Any], declared: Any) -> list[Json]:
    """Return the tokens of ``added_tokens.json`` with their ids, which count only without ``added_tokens_decoder``.

    Raises:
        ValueError: the value has another form. The message is a noun phrase.
    """
    if declared is not None:
        return []
    for content, number in value.items():
        if type(number) is not int or not 0 <= number < MAX_VOCAB_SIZE or not 0 < len(content) <= MAX_TOKEN_CHARACTERS:
            raise ValueError(f"the id {number!r:.40} in added_tokens.json")
    flags = {"special": False, "normalized": True}
    return [{"id": number, "content": content, **flags} for content, number in sorted(value.items(), key=lambda item: item[1])]


def extra_tokens(config: Mapping[str, Any]) -> list[Json]:
    """Return the further special tokens.

    Raises:
        ValueError: they are no list. The message is a noun phrase.
    """
    values = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    values = list(values.values()) if isinstance(values, dict) else values
    if not isinstance(values, list) or len(values) > MAX_VOCAB_SIZE:
        raise ValueError(f"extra_special_tokens = {values!r:.60}")
    return [token for value in values if (token := token_of(value, "extra_special_tokens")) is not None]


def generation_ids(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the token ids of ``generation_config.json`` by role.

    Raises:
        ValueError: an id is none. The message is a noun phrase.
    """
    found = {}
    for role, name in _GENERATION.items():
        value = config.get(name)
        ids = tuple(value) if isinstance(value, list) else () if value is None else (value,)
        if len(ids) > _MAX_PARTS or not all(type(number) is int and 0 <= number < MAX_VOCAB_SIZE for number in ids):
            raise ValueError(f"{name} = {value!r:.60} in generation_config.json")
        if ids:
            found[role] = ids
    return found


def chat_template(config: Mapping[str, Any]) -> str | None:
    """Return the text of the template of conversations, of several the one named ``default``.

    Raises:
        ValueError: it is no text. The message is a noun phrase.
    """
    value = config.get("chat_template")
    if isinstance(value, list):
        value = next((item.get("template") for item in value if isinstance(item, dict) and item.get("name") == "default"), None)
    if value is not None and (not isinstance(value, str) or len(value) > MAX_CHAT_TEMPLATE):
        raise ValueError(f"chat_template = {value!r:.60}")
    return value


def max_length(config: Mapping[str, Any]) -> int | None:
    """Return the context window in tokens, None if it is unknown, for which the transformers library writes 10**30.

    Raises:
        ValueError: it is no number. The message is a noun phrase.
    """
    value = config.get("model_max_length")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 1:
        raise ValueError(f"model_max_length = {value!r:.60}")
    return int(value) if value < _MAX_LENGTH else None


def read_templates(processor: Any, ids: Mapping[str, int]) -> tuple[Template, Template]:
    """Return the templates of one and of two texts.

    Args:
        processor: a checked post-processor.
        ids: token ids.

    Raises:
        ValueError: a special token has no id or another one. The message is a noun phrase.
    """
    kind = None if processor is None else processor["type"]
    if kind == "Sequence":
        others = [step for step in processor["processors"] if step["type"] != "ByteLevel"]
        if len(others) > 1:
            raise ValueError("several templates in one tokenizer")
        return read_templates(others[0] if others else None, ids)
    if kind in ("BertProcessing", "RobertaProcessing"):
        (first, last), is_bert = (
            (_special(processor[name][0], processor[name][1], ids) for name in ("cls", "sep")),
            kind == "BertProcessing",
        )
        second = int(is_bert)
        single = (TemplatePart(None, first, 0), TemplatePart("A", None, 0), TemplatePart(None, last, 0))
        middle = () if is_bert else (TemplatePart(None, last, 0),)
        return single, (*single, *middle, TemplatePart("B", None, second), TemplatePart(None, last, second))
    if kind == "TemplateProcessing":
        tokens = processor["special_tokens"]
        return _template(processor["single"], tokens, ids), _template(processor["pair"], tokens, ids)
    text = TemplatePart("A", None, 0)
    return (text,), (text, TemplatePart("B", None, 0 if kind else 1))


def _template(parts: list[Any], tokens: Mapping[str, Any], ids: Mapping[str, int]) -> Template:
    result: list[TemplatePart] = []
    if len(parts) > _MAX_PARTS:
        raise ValueError(f"a template of {len(parts):,} parts")
    for part in parts:
        match part:
            case {"Sequence": {"id": ("A" | "B") as text, "type_id": int() as kind}} if 0 <= kind < 2**16:
                result.append(TemplatePart(text, None, kind))
            case {"SpecialToken": {"id": str(name), "type_id": int() as kind}} if 0 <= kind < 2**16:
                match tokens.get(name):
                    case {"id": str(), "ids": list(numbers), "tokens": list(texts)} if 0 < len(numbers) == len(texts) <= _MAX_PARTS:
                        result += [
                            TemplatePart(None, _special(text, number, ids), kind) for text, number in zip(texts, numbers, strict=True)
                        ]
                    case other:
                        raise ValueError(f"{other!r:.60} as special token {name!r:.60} of a template")
            case _:
                raise ValueError(f"{part!r:.60} in a template")
    return tuple(result)


def _special(text: Any, number: Any, ids: Mapping[str, int]) -> int:
    if not isinstance(text, str) or type(number) is not int or ids.get(text) != number:
        raise ValueError(f"the id {number!r:.40} of the token {text!r:.60} in a template")
    return number
