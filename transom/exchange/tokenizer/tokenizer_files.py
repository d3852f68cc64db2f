"""Write the tokenizer of a run as the files that the transformers library reads.

The files are ``tokenizer.json``, in the format of the ``tokenizers`` library, and ``tokenizer_config.json``. The token ids of every text
are those of transom, except letters that are newer than Python's version of Unicode in lower-cased texts. Decoding gives transom's text
where it skips special tokens, and their names where it does not. No text is encoded as a special token, so the files set
``split_special_tokens``. Only for masked language models they do not, because the library recognizes all special tokens of a text, among
them the mask, or none.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from transom.data.tokenizer.bpe import PRETOKEN_PATTERN, BytePairEncoding
from transom.data.tokenizer.char_word_tokenizer import CharacterVocabulary, WordVocabulary
from transom.data.tokenizer.special_tokens import (
    CLOSED_TOKENS,
    EOS,
    MASK,
    OWN_TOKENS,
    PAD,
    SOS,
    TOKEN_NAMES,
    UNK,
    SpecialTokens,
    Template,
)
from transom.data.tokenizer.tokenizer import Tokenizers
from transom.errors import ConfigError
from transom.exchange.tokenizer.charsmap_convert import character_class
from transom.exchange.tokenizer.library_json import Json, added_token, post_processor, quote, regex_replace, sequence
from transom.exchange.tokenizer.lowercase import lowercase_normalizers
from transom.files.atomic_io import json_bytes

TOKENIZER_FILE, CONFIG_FILE = "tokenizer.json", "tokenizer_config.json"

_WORDS = {"pad": TOKEN_NAMES[PAD], "sos": TOKEN_NAMES[SOS], "eos": TOKEN_NAMES[EOS], "unk": TOKEN_NAMES[UNK]}

_VOCABULARIES: dict[str, type[BytePairEncoding] | type[CharacterVocabulary] | type[WordVocabulary]] = {
    "bpe": BytePairEncoding,
    "char": CharacterVocabulary,
    "whitespace": WordVocabulary,
}
GENERATING: tuple[str, ...] = ("language", "instruction")
"""Tasks whose models continue a text."""

_WORD = "\ufdd0"
"""Noncharacter before a word that equals a special token, which sets it apart from the token."""

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_WHITESPACE = character_class(filter(str.isspace, map(chr, range(0x10000))))


def input_template(special: SpecialTokens, task: str) -> Template:
    """Return the special tokens around a text that the first stack of a model reads."""
    around = special.template
    if task == "translation":
        return special.seq2seq
    if task == "instruction":
        end = (special.answer_start,)
        return Template((special.document_start,), end, (*end, special.document_start))
    if task == "language":  # a text that is continued has no end
        return Template(around.prefix, (), around.separator or around.prefix, around.second_type)
    return around


def first_token(special: SpecialTokens, task: str) -> int | None:
    """Return the token that the library calls ``bos_token``: the one before a text to continue, if there is one."""
    prefix = special.template.prefix
    return prefix[0] if task in GENERATING and prefix else special.bos_token_id


def export_tokenizers(tokenizers: Tokenizers, task: str, max_seq_len: int) -> dict[str, bytes]:
    """Return the files of the tokenizer of a run.

    Args:
        tokenizers: the tokenizers of both sides. They must be joint, because the transformers library has one tokenizer per model.
        task: task of the run, which decides the special tokens around a text.
        max_seq_len: context window in tokens.

    Returns:
        Content by file name.

    Raises:
        ConfigError: source and target have separate vocabularies, or the library cannot express the vocabulary.
    """
    if not tokenizers.joint:
        raise ConfigError(
            "tokenizer.joint: expected one vocabulary for source and target, as the transformers library has it, found two; train with"
            " tokenizer.joint = true"
        )
    return export_tokenizer(tokenizers.source.to_dict(), task, max_seq_len)


def export_tokenizer(value: Mapping[str, Any], task: str, max_seq_len: int) -> dict[str, bytes]:
    """Return the files of one tokenizer.

    Args:
        value: result of ``Tokenizer.to_dict``.
        task: task of the run, which decides the special tokens around a text.
        max_seq_len: context window in tokens.

    Returns:
        Content by file name.

    Raises:
        ConfigError: the library cannot express the vocabulary.
        CheckpointError: the value is no tokenizer.
    """
    library = tokenizer_json(value, task)
    roles = {"pad_token": _WORDS["pad"], "bos_token": TOKEN_NAMES[first_token(OWN_TOKENS, task) or SOS], "eos_token": _WORDS["eos"]}
    if value["kind"] != "bpe":
        roles["unk_token"] = _WORDS["unk"]
    if task == "masked":
        roles["mask_token"] = MASK
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **roles,
        "extra_special_tokens": [f"<2{tag}>" for tag in value.get("tags", [])],
        "model_max_length": max_seq_len,
        "padding_side": "left" if task in GENERATING else "right",
        "model_input_names": ["input_ids", "attention_mask"],
        "split_special_tokens": task != "masked",
        "clean_up_tokenization_spaces": False,
    }
    return {TOKENIZER_FILE: json_bytes(library), CONFIG_FILE: json_bytes(config)}


def tokenizer_json(value: Mapping[str, Any], task: str) -> Json:
    """Return the content of a ``tokenizer.json`` of the ``tokenizers`` library.

    The mask token of a masked language model is recognized in a text. Spaces before it belong to it, because a predicted subword contains
    its space.

    Args:
        value: result of ``Tokenizer.to_dict``.
        task: task of the run, which decides the special tokens around a text.

    Raises:
        ConfigError: a word of the vocabulary cannot be distinguished from a special token.
        CheckpointError: the value is no tokenizer.
    """
    kind, special = value["kind"], _special_tokens(value, task)
    ids = _token_ids(value, special)
    steps: list[Json] = lowercase_normalizers() if value["lowercase"] else []
    if kind == "bpe":
        steps.append({"type": "Prepend", "prepend": " "})
    elif kind == "whitespace":
        steps.append(regex_replace(f"(?<![^{_WHITESPACE}])(?={_any_of(special)}(?![^{_WHITESPACE}]))", _WORD))
    added = [added_token(ids[MASK], MASK) | {"lstrip": kind == "bpe"}] if task == "masked" else []
    own = OWN_TOKENS if kind == "bpe" else CLOSED_TOKENS
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": sequence("normalizers", steps),
        "pre_tokenizer": _pre_tokenizer(kind),
        "post_processor": post_processor(input_template(own, task), TOKEN_NAMES),
        "decoder": sequence("decoders", _decoders(kind, special)),
        "model": _model(value, ids),
    }


def _special_tokens(value: Mapping[str, Any], task: str) -> dict[str, int]:
    """Return the id of each special token, by its printed form."""
    vocabulary = _VOCABULARIES[value["kind"]].from_dict(dict(value))
    roles = (PAD, SOS, EOS) if value["kind"] == "bpe" else (PAD, SOS, EOS, UNK)
    names = [f"<2{tag}>" for tag in value.get("tags", [])] + [MASK][: task == "masked"]
    return {TOKEN_NAMES[role]: role for role in roles} | {name: token for token, name in enumerate(names, len(vocabulary.symbols))}


def _token_ids(value: Mapping[str, Any], special: Mapping[str, int]) -> dict[str, int]:
    """Return the token id of each token of the library. A word that equals a special token has a prefix, as it has in normalized texts."""
    symbols = dict(enumerate(_VOCABULARIES[value["kind"]].from_dict(dict(value)).symbols))
    words = {token: _WORD + symbol if symbol in special else symbol for token, symbol in symbols.items()}
    words |= {token: name for name, token in special.items()}
    ids = {symbol: token for token, symbol in sorted(words.items())}
    if len(ids) < len(words):
        raise ConfigError(
            f"tokenizer.kind: expected words that differ from special tokens, found two that do not in a vocabulary of kind"
            f' {value["kind"]!r}; train with tokenizer.kind = "bpe"'
        )
    return ids


def _pre_tokenizer(kind: str) -> Json | None:
    """Return the step that splits a text into units, None for characters, which the model itself separates."""
    if kind == "bpe":
        return {"type": "Split", "pattern": {"Regex": PRETOKEN_PATTERN}, "behavior": "Isolated", "invert": False}
    if kind == "whitespace":
        return {"type": "Split", "pattern": {"Regex": f"{_WHITESPACE}+"}, "behavior": "Removed", "invert": False}
    return None


def _model(value: Mapping[str, Any], ids: Mapping[str, int]) -> Json:
    """Return the model. A vocabulary of characters is a model of merges without merges."""
    if value["kind"] == "whitespace":
        return {"type": "WordLevel", "vocab": dict(ids), "unk_token": _WORDS["unk"]}
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None if value["kind"] == "bpe" else _WORDS["unk"],
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": value["kind"] == "bpe",
        "ignore_merges": False,
        "vocab": dict(ids),
        "merges": value.get("merges", []),
    }


def _decoders(kind: str, special: Mapping[str, int]) -> list[Json]:
    """Return decoders that join tokens as ``Tokenizer.decode`` does; special tokens, which the caller may skip, have their names."""
    unknown = TOKEN_NAMES[UNK]
    steps = list[Json]()
    if kind != "bpe":
        steps.append(regex_replace(rf"\A{_any_of([unknown])}\z", _REPLACEMENT))
    if kind == "whitespace":
        # A space before each word, and not before the first.
        steps += [regex_replace(rf"\A{_WORD}(?={_any_of(special)}\z)", ""), regex_replace(r"\A(?=[\s\S])", " ")]
    steps += [{"type": "ByteFallback"}] if kind == "bpe" else []
    steps.append({"type": "Fuse"})
    return steps if kind == "char" else [*steps, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]


def _any_of(texts: Iterable[str]) -> str:
    """Return a regular expression that matches one of some texts."""
    return f"(?:{'|'.join(quote(text) for text in texts)})"
