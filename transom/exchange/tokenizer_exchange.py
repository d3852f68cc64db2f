"""Tokenizers of both formats: read those of a foreign folder, and write those of a run."""

import json
from typing import Any

from transom.checkpoints.run_files import TOKENIZER
from transom.checkpoints.run_folder import RunFolder
from transom.config.architecture import ModelConfig
from transom.data.tokenizer.tokenizer import LIBRARY_KINDS, Tokenizer, Tokenizers
from transom.errors import ConfigError
from transom.exchange.folder_tokenizer import ROLES, read_folder_tokenizer
from transom.exchange.foreign_folder import TOKENIZER_CONFIG_FILE, ForeignFolder
from transom.exchange.imported import Imported
from transom.exchange.tokenizer_files import export_tokenizers
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
        return export_tokenizers(tokenizers, task, max_seq_len)  # type: ignore[arg-type]
    if not tokenizers.joint:
        raise ConfigError(
            "tokenizer.joint: expected one vocabulary for source and target, as the transformers library has it, found two; train with"
            " tokenizer.joint = true"
        )
    return {
        "tokenizer.json": json_bytes(tokenizers.source.to_library()),
        TOKENIZER_CONFIG_FILE: json_bytes(_tokenizer_config(tokenizers, config, imported)),
    }


def _tokenizer_config(tokenizers: Tokenizers, config: ModelConfig, imported: Imported | None) -> dict[str, Any]:
    """Return the fields of ``tokenizer_config.json``: those that came with an imported model, and the special tokens."""
    kept = dict(imported.files.get(TOKENIZER_CONFIG_FILE, {})) if imported is not None else {}
    contents, special = piece_contents(tokenizers.source.to_library()), tokenizers.source.special_tokens
    ids = {f"{role}_token": getattr(special, f"{role}_token_id") for role in ("pad", "bos", "eos", "unk", "mask", "sep", "cls")}
    generates = "classes" not in config.FROM_DATA and config.VOCABULARIES == ("vocab_size",) and getattr(config, "CAUSAL", False)
    own = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": getattr(config, "max_seq_len", 512),
        "padding_side": "left" if generates else "right",
        "clean_up_tokenization_spaces": False,
    }
    return own | kept | {"tokenizer_class": "PreTrainedTokenizerFast"} | {name: contents[n] for name, n in ids.items() if n is not None}


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
    n_rows = folder.config.get("vocab_size")
    sides = [found.library] + ([] if found.target_library is None else [found.target_library])
    return Tokenizers(*(Tokenizer.from_library(json.dumps(side), special, n_rows if isinstance(n_rows, int) else None) for side in sides))
