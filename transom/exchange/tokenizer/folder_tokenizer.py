"""Read the tokenizer of a folder in the format of the transformers library.

No code of the folder is run, and no file outside it is read. A chat template is kept as text.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from transom.data.tokenizer.library_state import check_added_tokens, check_state
from transom.errors import CheckpointError
from transom.exchange.tokenizer.library_json import Json, added_token
from transom.exchange.tokenizer.sentencepiece_model import read_sentencepiece
from transom.exchange.tokenizer.tokenizer_config import (
    MAX_CHAT_TEMPLATE,
    TemplatePart,
    chat_template,
    declared_tokens,
    extra_tokens,
    generation_ids,
    legacy_tokens,
    max_length,
    read_templates,
    token_of,
)
from transom.exchange.tokenizer.tokenizer_formats import (
    CLASS_OF_MODEL,
    CLASSES,
    SAME_CLASSES,
    TokenizerClass,
    begin_end_template,
    marian_tokenizer,
    merges_tokenizer,
    sentencepiece_tokenizer,
    words_tokenizer,
)
from transom.files.limits import MAX_JSON_BYTES, MAX_TOKENIZER_BYTES, MAX_TOKENIZER_LISTS, MAX_TOKENIZER_STRINGS
from transom.files.regular_files import parse_json
from transom.files.safe_read import read_bytes

ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
"""Roles of special tokens, in the order in which the transformers library adds them."""

_MAX_CONFIG_BYTES = 2**24
_SENTENCEPIECE = ("spiece.model", "tokenizer.model", "sentencepiece.bpe.model")
_MARIAN = ("source.spm", "target.spm")
_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "generation_config.json"),
    *("chat_template.jinja", "vocab.json", "target_vocab.json", "merges.txt", "vocab.txt", *_SENTENCEPIECE, *_MARIAN),
)


@dataclass(frozen=True)
class SpecialToken:
    """A special token.

    Attributes:
        text: printed form.
        id: token id.
    """

    text: str
    id: int


@dataclass(frozen=True)
class FolderTokenizer:
    """Tokenizer of a folder.

    Attributes:
        library: content of a ``tokenizer.json``, checked. Of two sides, the source.
        target_library: the same for the target of a Marian model, None for other models.
        n_tokens: number of token ids. A library that returns a greater one has met a piece that the vocabulary lacks, which is unknown.
        special: special tokens by role, such as ``eos``.
        single: template of one text.
        pair: template of two texts.
        generation_ids: token ids by role (``bos``, ``eos``, ``pad``, ``decoder_start``) from ``generation_config.json``.
        chat_template: text of the template of conversations, which is never executed. None if there is none.
        max_length: context window in tokens, None if unknown.
        padding_side: side at which batches are padded.
        files: names of the files of the tokenizer in the folder.
    """

    library: Json
    target_library: Json | None
    n_tokens: int
    special: dict[str, SpecialToken]
    single: tuple[TemplatePart, ...]
    pair: tuple[TemplatePart, ...]
    generation_ids: dict[str, tuple[int, ...]]
    chat_template: str | None
    max_length: int | None
    padding_side: Literal["left", "right"]
    files: tuple[str, ...]


def read_folder_tokenizer(folder: str | Path) -> FolderTokenizer:
    """Read the tokenizer of a folder of the transformers library.

    The files are ``tokenizer.json`` or, without it, those of the classes of ``tokenizer_formats.CLASSES``.

    Raises:
        CheckpointError: files are missing, damaged, too large or hostile, or the class is not supported.
    """
    folder = Path(folder)
    files = tuple(name for name in _FILES if (folder / name).is_symlink() or (folder / name).exists())
    try:
        return _read(folder, files)
    except ValueError as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(
            f"{folder}: expected a tokenizer of the transformers library, found {error}; copy its files again, or save them with"
            " AutoTokenizer"
        ) from error


def _read(folder: Path, files: tuple[str, ...]) -> FolderTokenizer:
    config = _read_object(folder, files, "tokenizer_config.json")
    name, known = _class_of(folder, config)
    roles = dict(known.roles) if known is not None and "tokenizer.json" not in files else {}
    declared = config.get("added_tokens_decoder")
    if declared is None:
        config = {**config, **_read_object(folder, files, "special_tokens_map.json")}
    named = {role: token for role in ROLES if (token := token_of(config.get(f"{role}_token"), f"{role}_token")) is not None}
    roles = {role: text for role, text in roles.items() if f"{role}_token" not in config}
    roles |= {role: str(token["content"]) for role, token in named.items()}
    library, target, n_tokens = _read_library(folder, files, config, name, known, roles)
    ids = check_state(library, gaps=False)
    if target is not None:
        check_state(target, gaps=False)
    added = [*declared_tokens(declared), *legacy_tokens(_read_object(folder, files, "added_tokens.json"), declared)]
    added += [named.get(role, {"content": roles[role]}) for role in ROLES if role in roles]
    added += extra_tokens(config)
    ids = _add_tokens(library, ids, added)
    if library.get("post_processor") is None and "tokenizer.json" not in files:
        library["post_processor"] = begin_end_template(config, roles, ids)
    single, pair = read_templates(library.get("post_processor"), ids)
    return FolderTokenizer(
        library,
        target,
        len(ids) if n_tokens is None else n_tokens,
        {role: SpecialToken(text, ids[text]) for role, text in roles.items()},
        single,
        pair,
        generation_ids(_read_object(folder, files, "generation_config.json")),
        _chat_template(folder, files, config),
        max_length(config),
        "left" if config.get("padding_side", "left" if name == "LlamaTokenizer" else "right") == "left" else "right",
        files,
    )


def _class_of(folder: Path, config: Mapping[str, Any]) -> tuple[str, TokenizerClass | None]:
    """Return the name of the class of the tokenizer, and its row of the table, None for an unknown class."""
    name = config.get("tokenizer_class")
    if not isinstance(name, str):
        model = _read_object(folder, ("config.json",) if (folder / "config.json").exists() else (), "config.json")
        kind = model.get("model_type")
        name = model.get("tokenizer_class") or CLASS_OF_MODEL.get(kind if isinstance(kind, str) else "", "")
    name = name.removesuffix("Fast") if isinstance(name, str) else ""
    name = SAME_CLASSES.get(name, name)
    return name, CLASSES.get(name)


def _read_library(
    folder: Path, files: tuple[str, ...], config: Mapping[str, Any], name: str, known: TokenizerClass | None, roles: Mapping[str, str]
) -> tuple[Json, Json | None, int | None]:
    """Return the tokenizer of the source, the one of the target of a Marian model, and the number of its token ids."""
    if "tokenizer.json" in files:
        library = _read_object(folder, files, "tokenizer.json", MAX_JSON_BYTES)
        return {**library, "truncation": None, "padding": None}, None, None
    if known is None:
        raise ValueError(f"no tokenizer.json, and the class {name!r:.60}, whose files only the transformers library reads")
    if name == "MarianTokenizer":
        return _read_marian(folder, files, config, roles)
    if known.files == "merges":
        vocab = _read_object(folder, files, "vocab.json", MAX_JSON_BYTES, needed=True)
        return merges_tokenizer(name, vocab, _read_text(folder, files, "merges.txt"), config, roles), None, None
    if known.files == "words":
        return words_tokenizer(_read_text(folder, files, "vocab.txt"), config, roles), None, None
    file = next((file for file in _SENTENCEPIECE if file in files), None)
    if file is None:
        raise ValueError(f"neither tokenizer.json nor one of {', '.join(_SENTENCEPIECE)}")
    model = read_sentencepiece(read_bytes(folder / file, MAX_TOKENIZER_BYTES), str(folder / file))
    return sentencepiece_tokenizer(name, model, str(folder / file), config, roles).library, None, None


def _read_marian(
    folder: Path, files: tuple[str, ...], config: Mapping[str, Any], roles: Mapping[str, str]
) -> tuple[Json, Json, int | None]:
    vocab = _read_object(folder, files, "vocab.json", MAX_JSON_BYTES, needed=True)
    is_separate = config.get("separate_vocabs") is True
    target_vocab = _read_object(folder, files, "target_vocab.json", MAX_JSON_BYTES, needed=True) if is_separate else vocab
    if missing := [token for token in roles.values() if token not in vocab or token not in target_vocab]:
        raise ValueError(f"no special token {missing[0]!r:.60} in vocab.json")
    sides = []
    for file, ids in zip(_MARIAN, (vocab, target_vocab), strict=True):
        if file not in files:
            raise ValueError(f"neither tokenizer.json nor {file}")
        model = read_sentencepiece(read_bytes(folder / file, MAX_TOKENIZER_BYTES), str(folder / file))
        sides.append(marian_tokenizer(model, str(folder / file), ids, roles))
    source, target = sides
    return source.library, target.library, source.n_tokens


def _add_tokens(library: Json, ids: Mapping[str, int], tokens: list[Json]) -> dict[str, int]:
    """Add tokens that the tokenizer lacks, and return the ids of all tokens.

    Args:
        library: a checked tokenizer.
        ids: ids of the pieces of its model, 0 to n - 1.
        tokens: the tokens.

    Raises:
        ValueError: a token has another id than a file says. The message is a noun phrase.
    """
    before: Any = library["added_tokens"]
    listed: list[dict[str, Any]] = [*before]
    all_ids = check_added_tokens(listed, ids)
    present = {token["content"] for token in listed}
    for token in tokens:
        content = str(token["content"])
        number = all_ids.setdefault(content, len(all_ids))
        if token.get("id", number) != number:
            raise ValueError(f"the id {token['id']!r:.40} for the token {content!r:.60}, whose id is {number:,}")
        if content not in present:
            present.add(content)
            listed.append(added_token(number, content) | {key: value for key, value in token.items() if key != "id"})
    library["added_tokens"] = sorted(listed, key=lambda token: all_ids[str(token["content"])])
    return check_added_tokens(library["added_tokens"], ids)


def _chat_template(folder: Path, files: tuple[str, ...], config: Mapping[str, Any]) -> str | None:
    """Return the template of conversations from its own file, or from ``tokenizer_config.json``."""
    if "chat_template.jinja" in files:
        return _read_text(folder, files, "chat_template.jinja", MAX_CHAT_TEMPLATE)
    return chat_template(config)


def _read_object(
    folder: Path, files: tuple[str, ...], name: str, max_bytes: int = _MAX_CONFIG_BYTES, needed: bool = False
) -> dict[str, Any]:
    """Return the object of a JSON file, empty if the folder lacks a file that is not needed."""
    if name not in files:
        if needed:
            raise ValueError(f"neither tokenizer.json nor {name}")
        return {}
    content = read_bytes(folder / name, max_bytes)
    for count, most, what in (
        (content.count(b"[") + content.count(b"{"), MAX_TOKENIZER_LISTS, "lists"),
        (content.count(b'"') // 2, MAX_TOKENIZER_STRINGS, "strings"),
    ):
        if count > most:
            raise ValueError(f"{count:,} {what} in {name}, more than {most:,}")
    try:
        value = parse_json(content)
        if b"\\u" in content:  # only an escape can produce half a surrogate pair
            json.dumps(value, ensure_ascii=False).encode()
    except ValueError as error:
        raise ValueError(f"damaged JSON in {name} ({error!s:.120})") from error
    if not isinstance(value, dict):
        raise ValueError(f"no JSON object in {name}")
    return value


def _read_text(folder: Path, files: tuple[str, ...], name: str, max_bytes: int = MAX_TOKENIZER_BYTES) -> str:
    if name not in files:
        raise ValueError(f"neither tokenizer.json nor {name}")
    try:
        return read_bytes(folder / name, max_bytes).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"text that is not UTF-8 in {name}") from error
