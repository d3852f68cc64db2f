"""Read a model folder of the transformers library: its JSON files and the headers of its safetensors files, all sizes bounded.

Nothing in the folder is executed. Names in the index of shards must be file names inside the folder.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transom.checkpoints.tensors import TensorSpec, open_safetensors
from transom.errors import CheckpointError
from transom.files.limits import MAX_JSON_BYTES
from transom.files.regular_files import parse_json, read_regular_file
from transom.files.safe_read import require_regular_file

CONFIG_FILE, WEIGHTS_FILE, INDEX_FILE = "config.json", "model.safetensors", "model.safetensors.index.json"
GENERATION_FILE, PREPROCESSOR_FILE, TOKENIZER_CONFIG_FILE = "generation_config.json", "preprocessor_config.json", "tokenizer_config.json"

MAX_SHARDS = 1000
"""Maximum number of files of one model; the largest published models have about 200."""

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_SHARD_NAME = re.compile(r"[A-Za-z0-9_.-]{1,200}\.safetensors")
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "model.pt", "tf_model.h5", "flax_model.msgpack", "pytorch_adapter.bin")


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file of the folder.

    Attributes:
        path: the file.
        spec: dtype and shape.
    """

    path: Path
    spec: TensorSpec


def read_json_object(path: Path) -> dict[str, Any] | None:
    """Return the object in a JSON file of another library; None if there is no such file.

    Raises:
        CheckpointError: the file is damaged or too large, or contains no object.
    """
    if not path.exists() and not path.is_symlink():
        return None
    require_regular_file(path)
    try:
        value = parse_json(read_regular_file(path, MAX_JSON_BYTES, "a configuration", CheckpointError), finite=False)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: expected JSON, found damaged content ({error}); copy the file again") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: expected a JSON object, found {value!r:.80}; copy the file again")
    return value


class ForeignFolder:
    """A folder with a ``config.json`` and weights, as ``save_pretrained`` writes it.

    Attributes:
        path: the folder.
        config: fields of ``config.json``.
        tensors: the stored tensors by name.
    """

    def __init__(self, path: Path) -> None:
        """Read the configuration, and the names, dtypes and shapes of the tensors.

        Raises:
            CheckpointError: the folder or a file is missing, damaged, too large, or asks for code of its own.
        """
        if not path.is_dir():
            raise CheckpointError(f"{path}: expected a folder with {CONFIG_FILE}, found {'a file' if path.exists() else 'nothing'}")
        self.path = path
        config = self.read_json(CONFIG_FILE)
        if config is None:
            raise CheckpointError(f"{path}: expected a folder with {CONFIG_FILE}, found none; name a folder that save_pretrained wrote")
        self.config: Mapping[str, Any] = config
        if "auto_map" in config:
            raise CheckpointError(
                f"{path / CONFIG_FILE}: auto_map: expected a model of the transformers library, found one that needs code from its folder;"
                " transom runs no code of a model folder"
            )
        self.tensors = self._list_tensors()
        self._handles: dict[Path, Any] = {}

    def read_json(self, name: str) -> dict[str, Any] | None:
        """Return the object in a JSON file of the folder, as ``read_json_object``."""
        return read_json_object(self.path / name)

    def read_tensor(self, name: str) -> Tensor:
        """Return a tensor, mapped from its file."""
        path = self.tensors[name].path
        if path not in self._handles:
            self._handles[path], _ = open_safetensors(path)
        found: Tensor = self._handles[path].get_tensor(name)
        return found

    def _list_tensors(self) -> dict[str, StoredTensor]:
        index = self.read_json(INDEX_FILE)
        if index is None:
            if not (self.path / WEIGHTS_FILE).exists():
                raise self._no_weights()
            return self._tensors_of(self.path / WEIGHTS_FILE)
        listed = index.get("weight_map")
        if not isinstance(listed, dict) or not listed or not all(isinstance(name, str) for name in listed.values()):
            raise CheckpointError(f"{self.path / INDEX_FILE}: expected a weight_map from tensors to files, found {listed!r:.80}")
        files = sorted(set(listed.values()))
        if len(files) > MAX_SHARDS:
            raise CheckpointError(f"{self.path / INDEX_FILE}: expected at most {MAX_SHARDS:,} files, found {len(files):,}")
        if wrong := [name for name in files if not _SHARD_NAME.fullmatch(name)]:
            raise CheckpointError(
                f"{self.path / INDEX_FILE}: expected names of .safetensors files in this folder, found {wrong[0]!r:.200}; no file was read"
            )
        found: dict[str, StoredTensor] = {}
        for name in files:
            stored = self._tensors_of(self.path / name)
            if twice := [tensor for tensor in stored if tensor in found]:
                raise CheckpointError(f"{self.path / name}: expected tensors of one model, found {twice[0][:200]!r} in two files")
            found |= stored
        if (missing := [name for name in listed if name not in found]) or (missing := [name for name in found if name not in listed]):
            raise CheckpointError(
                f"{self.path / INDEX_FILE}: expected the tensors of its files, found {missing[0][:200]!r} on one side; the files belong"
                " to different models"
            )
        return found

    def _tensors_of(self, path: Path) -> dict[str, StoredTensor]:
        _, specs = open_safetensors(path)
        if wrong := [name for name, spec in specs.items() if spec.dtype not in FLOATS and spec.dtype in _QUANTIZED]:
            raise CheckpointError(
                f"{path}: tensor {wrong[0][:200]!r}: expected floating-point values of 16 bits or more, found {specs[wrong[0]].dtype};"
                " save the model without quantization"
            )
        return {name: StoredTensor(path, spec) for name, spec in specs.items()}

    def _no_weights(self) -> CheckpointError:
        found = [name for name in _PICKLES if (self.path / name).exists()]
        if found:
            return CheckpointError(
                f"{self.path / found[0]}: expected {WEIGHTS_FILE}, found only a format that can run code when it is read; where you trust"
                " it, convert it with AutoModel.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER)"
            )
        return CheckpointError(f"{self.path}: expected {WEIGHTS_FILE} or {INDEX_FILE}, found neither; copy the weights into the folder")


_QUANTIZED = (torch.int8, torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2)
