"""Files of the sentence-transformers library beside the encoder: how the vectors of tokens become one vector per text."""

from collections.abc import Mapping
from typing import Any

from transom.errors import CheckpointError
from transom.exchange.config_rows import Fields
from transom.exchange.foreign_folder import ForeignFolder
from transom.files.regular_files import parse_json, read_regular_file
from transom.files.safe_read import require_regular_file

MODULES_FILE, POOLING_FOLDER, SETTINGS_FILE = "modules.json", "1_Pooling", "sentence_bert_config.json"
_MODES = {"cls": "cls", "mean": "mean"}
_FLAGS = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}
_MAX_BYTES = 2**20


def read_pooling(folder: ForeignFolder) -> tuple[Fields, list[str]]:
    """Return our field of pooling, and lines on what is not carried over.

    A folder without ``modules.json`` holds an encoder alone; its texts get the mean of the token vectors.

    Raises:
        CheckpointError: the folder has other modules than encoder, pooling and normalization, or pools in another way.
    """
    modules = _modules(folder)
    if modules is None:
        return {"pooling": "mean"}, ["the folder has no modules.json, so the vector of a text is the mean over its tokens"]
    kinds = [str(module.get("type", "")).rsplit(".", 1)[-1] for module in modules]
    if kinds[:2] != ["Transformer", "Pooling"] or kinds[2:] not in ([], ["Normalize"]):
        raise CheckpointError(
            f"{MODULES_FILE}: expected the modules Transformer, Pooling and perhaps Normalize, found {', '.join(kinds)[:200]}; transom"
            " cannot express others"
        )
    pooling = folder.read_json(f"{POOLING_FOLDER}/config.json") or {}
    modes = [name for flag, name in _FLAGS.items() if pooling.get(flag) is True]
    others = [flag for flag, value in pooling.items() if flag.startswith("pooling_mode_") and value is True and flag not in _FLAGS]
    mode = _MODES.get(str(pooling.get("pooling_mode", "")), modes[0] if len(modes) == 1 and not others else "")
    if not mode:
        raise CheckpointError(f"{POOLING_FOLDER}/config.json: expected the mode cls or mean, found {str(pooling)[:200]}")
    notes = [] if kinds[2:] else ["vectors of texts have length 1 here; cosine similarities are the same"]
    return {"pooling": mode}, notes


def _modules(folder: ForeignFolder) -> list[Mapping[str, Any]] | None:
    path = folder.path / MODULES_FILE
    if not path.exists():
        return None
    require_regular_file(path)
    try:
        found = parse_json(read_regular_file(path, _MAX_BYTES, "a list of modules", CheckpointError))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: expected JSON, found damaged content ({error}); copy the file again") from error
    if not isinstance(found, list) or not all(isinstance(module, dict) for module in found):
        raise CheckpointError(f"{path}: expected a list of modules, found {str(found)[:80]}; copy the file again")
    return found


def write_pooling(pooling: str, d_model: int, max_seq_len: int) -> dict[str, Any]:
    """Return the JSON files of the library by path, with normalization, as our vectors have it."""
    types = {"": "models.Transformer", POOLING_FOLDER: "models.Pooling", "2_Normalize": "models.Normalize"}
    modules = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.{kind}"} for n, (path, kind) in enumerate(types.items())
    ]
    flags = {flag: mode == pooling for flag, mode in _FLAGS.items()}
    return {
        MODULES_FILE: modules,
        f"{POOLING_FOLDER}/config.json": {"word_embedding_dimension": d_model, **flags},
        "2_Normalize/config.json": {},
        SETTINGS_FILE: {"max_seq_length": max_seq_len, "do_lower_case": False},
        "config_sentence_transformers.json": {"similarity_fn_name": "cosine"},
    }
