"""Parts of the JSON of a ``tokenizers`` tokenizer."""

from collections.abc import Mapping, Sequence

from transom.data.tokenizer.special_tokens import Template

Json = dict[str, object]


def added_token(token: int, content: str, special: bool = True, normalized: bool = False) -> Json:
    """Return a token that is recognized in texts before they are encoded.

    Args:
        token: token id.
        content: text of the token.
        special: True for a control symbol such as the end of a sequence.
        normalized: True if it is looked for in the normalized text.
    """
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": normalized, "special": special}
    return {"id": token, "content": content, **flags}


def regex_replace(pattern: str, content: str) -> Json:
    """Return the replacement of a regular expression, as normalizer or decoder."""
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}


def string_replace(pattern: str, content: str) -> Json:
    """Return the replacement of a string, as normalizer or decoder."""
    return {"type": "Replace", "pattern": {"String": pattern}, "content": content}


def quote(text: str) -> str:
    """Return a regular expression that matches a text only."""
    return "".join(f"\\x{{{ord(character):x}}}" for character in text)


def sequence(name: str, steps: Sequence[Json]) -> Json | None:
    """Return a sequence of normalizers, pre-tokenizers or decoders, None if it is empty.

    Args:
        name: name of the list, such as ``normalizers``.
        steps: the steps in order.
    """
    return {"type": "Sequence", name: list(steps)} if steps else None


def post_processor(around: Template, names: Mapping[int, str]) -> Json | None:
    """Return a post-processor that surrounds one or two texts by the special tokens of a template, None if it adds no token.

    Args:
        around: the special tokens; its separator begins with its suffix.
        names: content of each special token, by its id.
    """
    closed = len(around.suffix)
    assert around.separator[:closed] == around.suffix, "the second text follows the first with its suffix"
    prefix, between, suffix = ([names[token] for token in part] for part in (around.prefix, around.separator[closed:], around.suffix))
    ids = {name: token for token, name in names.items()}
    return template([*prefix, 0, *suffix], [*between, 1, *suffix], ids, one_type=not around.second_type)


def template(single: Sequence[str | int], second: Sequence[str | int], ids: Mapping[str, int], one_type: bool = False) -> Json | None:
    """Return a post-processor that surrounds one or two texts by special tokens, None if it adds no token.

    Args:
        single: special tokens, and 0 in place of the text.
        second: special tokens, and 1 in place of the text, which follow if there are two texts.
        ids: token id of each special token.
        one_type: give all tokens type 0. Otherwise, those of the second text have type 1.
    """
    used = sorted({part for part in (*single, *second) if isinstance(part, str)}, key=ids.__getitem__)
    if not used:
        return None
    return {
        "type": "TemplateProcessing",
        "single": _parts(single, 0),
        "pair": _parts(single, 0) + _parts(second, int(not one_type)),
        "special_tokens": {token: {"id": token, "ids": [ids[token]], "tokens": [token]} for token in used},
    }


def _parts(parts: Sequence[str | int], kind: int) -> list[Json]:
    return [
        {"SpecialToken": {"id": part, "type_id": kind}} if isinstance(part, str) else {"Sequence": {"id": "AB"[part], "type_id": kind}}
        for part in parts
    ]
