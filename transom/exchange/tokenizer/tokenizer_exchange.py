"""Tokenizers of both formats: read those of a foreign folder, and write those of a run."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import tokenizers as library

from transom.checkpoints.run_files import TOKENIZER
from transom.checkpoints.run_folder import RunFolder
from transom.config.architecture import ModelConfig
from transom.data.tokenizer.special_tokens import Template
from transom.data.tokenizer.tokenizer import LIBRARY_KINDS, Tokenizer, Tokenizers
from transom.errors import ConfigError
from transom.exchange.foreign_folder import ForeignFolder
from transom.exchange.imported import Imported
from transom.exchange.tokenizer.folder_tokenizer import ROLES, read_folder_tokenizer
from transom.exchange.tokenizer.library_json import post_processor
from transom.exchange.tokenizer.sentencepiece_convert import ABSENT
from transom.exchange.tokenizer.tokenizer_config import generation_ids
from transom.exchange.tokenizer.tokenizer_files import (
    CONFIG_FILE,
    GENERATING,
    TOKENIZER_FILE,
    export_tokenizers,
    first_token,
    input_template,
)
from transom.files.atomic_io import json_bytes


def load_run_tokenizers(folder: RunFolder) -> Tokenizers:
    """Return the tokenizers of a run.

    Raises:
        CheckpointError: the file is missing or damaged.
    """
    return Tokenizers.from_bytes(folder.read(TOKENIZER), str(folder.path / TOKENIZER))


def tokenizer_files(tokenizers: Tokenizers, config: ModelConfig, task: str, imported: Imported | None) -> dict[str, bytes]:
    """Return the tokenizer's files of an export by name.

    Args:
        tokenizers: tokenizers of the run.
        config: configuration of the model.
        task: task of the run.
        imported: what the run was imported from; None for a run that transom trained.

    Raises:
        ConfigError: the library cannot express the tokenizers.
    """
    max_seq_len: int = getattr(config, "max_seq_len", 512)
    if tokenizers.source.kind not in LIBRARY_KINDS:
        return export_tokenizers(tokenizers, task, max_seq_len)
    if not _have_the_same_ids(tokenizers):
        raise ConfigError(
            "tokenizer.joint: expected one vocabulary for source and target, as the transformers library has it, found two; train with"
            " tokenizer.joint = true"
        )
    state = tokenizers.source.to_library()
    if pieces_without_id(tokenizers.source):
        state = state | {"model": state["model"] | {"vocab": state["model"]["vocab"][: tokenizers.source.vocab_size]}}
    contents, special = piece_contents(state), tokenizers.source.special_tokens
    kept = dict(imported.files.get(CONFIG_FILE, {})) if imported is not None else {"split_special_tokens": task != "masked"}
    own = {
        "model_max_length": max_seq_len,
        "padding_side": "left" if task in GENERATING else "right",
        "clean_up_tokenization_spaces": False,
    }
    ids = {f"{role}_token": getattr(special, f"{role}_token_id") for role in ("pad", "eos", "unk", "mask", "sep", "cls")}
    ids["bos_token"] = first_token(special, task)
    roles = {name: contents[n] for name, n in ids.items() if n is not None}
    return {
        TOKENIZER_FILE: json_bytes(_with_template(state, input_template(special, task), contents)),
        CONFIG_FILE: json_bytes(own | kept | {"tokenizer_class": "PreTrainedTokenizerFast"} | roles),
    }


def pieces_without_id(tokenizer: Tokenizer) -> list[str]:
    """Return the pieces of a Unigram tokenizer that the model has no row for, which are unknown here; an export leaves them out."""
    if tokenizer.kind not in LIBRARY_KINDS or (model := tokenizer.to_library()["model"])["type"] != "Unigram":
        return []
    return [piece for piece, _ in model["vocab"][tokenizer.vocab_size :]]


def _have_the_same_ids(tokenizers: Tokenizers) -> bool:
    """Return whether one tokenizer encodes the source and decodes the target: both are one, or number the same pieces, as in Marian."""
    source, target = (
        {token: text.removeprefix(ABSENT) for token, text in piece_contents(each.to_library()).items() if token < each.vocab_size}
        for each in (tokenizers.source, tokenizers.target)
    )
    return source == target


def _with_template(state: dict[str, Any], around: Template, contents: Mapping[int, str]) -> dict[str, Any]:
    """Return the state of a tokenizer that surrounds texts by the special tokens that the model reads."""
    found = library.Tokenizer.from_str(json.dumps(state))
    if found.encode("a").ids == around.surround(found.encode("a", add_special_tokens=False).ids):
        return state
    return state | {"post_processor": post_processor(around, contents)}


def piece_contents(state: dict[str, Any]) -> dict[int, str]:
    """Return the content of each token of a tokenizer of the ``tokenizers`` library by its id."""
    vocab = state["model"]["vocab"]
    pieces = vocab.items() if isinstance(vocab, dict) else ((piece, n) for n, (piece, _) in enumerate(vocab))
    return {n: piece for piece, n in pieces} | {each["id"]: each["content"] for each in state.get("added_tokens", [])}


def load_folder_tokenizers(folder: ForeignFolder) -> Tokenizers:
    """Return the tokenizers of a foreign folder: of a Marian model one per side, with the same token ids.

    Raises:
        CheckpointError: files are missing, damaged, too large or hostile, or the tokenizer has more tokens than the model.
    """
    found = read_folder_tokenizer(folder.path)
    special: dict[str, str | int | None] = {f"{role}_token_id": None for role in ROLES}
    special |= {f"{role}_token_id": token.id for role, token in found.special.items()}
    start = found.generation_ids.get("decoder_start") or (folder.config.get("decoder_start_token_id"),)
    if isinstance(start[0], int):
        special["decoder_start_token_id"] = start[0]
    ends = found.generation_ids.get("eos") or generation_ids(folder.config).get("eos", ())
    if special["eos_token_id"] is None and special["sep_token_id"] is None and ends:
        special["eos_token_id"] = ends[0]
    n_rows = folder.config.get("vocab_size")
    sides = [found.library] + ([] if found.target_library is None else [found.target_library])
    return Tokenizers(*(_with_ends(json.dumps(side), special, n_rows if isinstance(n_rows, int) else None, ends) for side in sides))


def _with_ends(state: str, special: Mapping[str, str | int | None], n_rows: int | None, ends: Sequence[int]) -> Tokenizer:
    """Return a tokenizer with all tokens that end a text."""
    tokenizer = Tokenizer.from_library(state, special, n_rows)
    others = tuple(token for token in dict.fromkeys(ends) if token != special["eos_token_id"] and token < tokenizer.vocab_size)
    return tokenizer.with_other_ends(others) if others else tokenizer
