"""Traces in files: sites are written while the model runs, and read by memory mapping.

A folder has shards ``sites-00000.safetensors`` and so on, and ``trace.json``, which lists the shard of every site and what was asked for.
The list is replaced after each shard, so that whatever was written before a crash can be read.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self, cast

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from transom.checkpoints.tensors import map_tensors, serialize_tensors
from transom.data import batch as batches
from transom.errors import CheckpointError
from transom.files.atomic_io import write_file
from transom.inspection.activations import Activations, autocast_dtype
from transom.layers.observe import ActivationRecorder
from transom.models import inputs
from transom.models.base import Network

INDEX = "trace.json"
SHARD_BYTES = 2**25
"""Size in bytes from which a shard is written."""


FORMAT_VERSION = 2
"""Version of the folders that are written and read. Version 1 had no request and no autocast."""


class TraceRequest(BaseModel):
    """Request of a trace, and what else gives the same values again.

    Attributes:
        names: addresses of the quantities.
        heads: query heads; None for all.
        positions: query positions; None for all.
        temperature: divisor of the logits before ``probs`` and ``log_probs``.
        tokens: symbols of the first row per side.
        edited: attention layers whose head outputs were edited.
        autocast: PyTorch's name of the dtype of matrix products under autocast, such as ``bfloat16``; None without autocast.
    """

    model_config = ConfigDict(strict=True, extra="forbid")
    names: list[str]
    heads: list[int] | None
    positions: list[int] | None
    temperature: float
    tokens: dict[str, list[str]]
    edited: list[str]
    autocast: Literal["bfloat16", "float16", "float32"] | None

    @classmethod
    def of(
        cls,
        network: Network,
        names: Sequence[str],
        heads: Sequence[int] | None,
        positions: Sequence[int] | None,
        temperature: float,
        tokens: Mapping[str, list[str]],
        edited: Sequence[str],
    ) -> Self:
        """Describe a request, with the autocast that is in force."""
        dtype = autocast_dtype(network)
        return cls(
            names=list(names),
            heads=None if heads is None else [int(head) for head in heads],
            positions=None if positions is None else [int(position) for position in positions],
            temperature=float(temperature),
            tokens=dict(tokens),
            edited=list(edited),
            autocast=None if dtype is None else cast(Any, str(dtype).removeprefix("torch.")),
        )

    @property
    def autocast_dtype(self) -> torch.dtype | None:
        """Dtype of matrix products under autocast; None without autocast."""
        return None if self.autocast is None else getattr(torch, self.autocast)


class _AnyVersion(BaseModel):
    """The version of a folder's format, of any version."""

    version: int


class TraceIndex(BaseModel):
    """The list of a folder's tensors.

    Attributes:
        version: version of the format.
        request: what was asked for.
        weights: digest of the model's weights during the pass.
        batch: classes and values of the batch, whose tensors are in the shards under ``batch``.
        shards: shard of each tensor.
        complete: whether the pass ended.
    """

    model_config = ConfigDict(strict=True, extra="forbid")
    version: int = FORMAT_VERSION
    request: TraceRequest
    weights: str
    batch: Any
    shards: dict[str, str]
    complete: bool = False


class TraceWriter(ActivationRecorder):
    """A recorder that writes the sites to a folder and keeps none in memory.

    Attributes:
        index: what has been written.
    """

    def __init__(self, patterns: Sequence[str], folder: Path, network: Network, batch: Any, request: TraceRequest) -> None:
        """Write the batch; the sites that match ``patterns`` follow during the pass."""
        super().__init__(patterns)
        self.folder, self._pending, self._bytes, self._n_shards = folder, dict[str, Tensor](), 0, 0
        self._unrolled = dict[str, Tensor]()
        tensors = dict[str, Tensor]()
        packed = _pack(batch, "batch", tensors)
        self.index = TraceIndex(request=request, weights=weights_digest(network), batch=packed, shards={})
        folder.mkdir(parents=True, exist_ok=True)
        (folder / INDEX).unlink(missing_ok=True)  # first, so that an earlier trace is never mixed with this one
        for shard in folder.glob("sites-*.safetensors"):
            shard.unlink()
        for name, x in tensors.items():
            self.keep(name, x)
        self.flush()

    def keep(self, address: str, x: Tensor) -> Tensor:
        """Write ``x`` with the next shard; return an empty tensor, which takes its place in memory.

        A site in a loop over time steps is kept again at each step. It is written at the end, when it has all steps.
        """
        if address in self._unrolled or address in self._pending or address in self.index.shards:
            self._pending.pop(address, None)
            self._unrolled[address] = x.detach()
            return x.new_empty(0)
        self._pending[address] = x.detach()
        self._bytes += x.numel() * x.element_size()
        if self._bytes >= SHARD_BYTES:
            self.flush()
        return x.new_empty(0)

    def flush(self, complete: bool = False) -> None:
        """Write the pending tensors as a shard, then the index."""
        if complete:
            self._pending |= self._unrolled
        if self._pending:
            name = f"sites-{self._n_shards:05d}.safetensors"
            self._n_shards += 1
            write_file(self.folder / name, serialize_tensors({address: x.clone().contiguous() for address, x in self._pending.items()}))
            self.index.shards |= dict.fromkeys(self._pending, name)
            self._pending, self._bytes = {}, 0
        self.index.complete = complete
        write_file(self.folder / INDEX, self.index.model_dump_json(indent=1).encode())


class MappedTensors(Mapping[str, Tensor]):
    """Tensors of a folder by name, mapped into memory: a page is read from the disk when it is used."""

    def __init__(self, folder: Path, shards: Mapping[str, str]) -> None:
        self._folder, self._shards, self._mapped = folder, shards, dict[str, Tensor]()

    def __getitem__(self, name: str) -> Tensor:
        """Return a tensor that is mapped into memory.

        Raises:
            CheckpointError: the shard is missing or broken.
        """
        if name not in self._mapped:
            path = self._folder / self._shards[name]
            try:
                found = map_tensors(path)
            except OSError as error:
                raise CheckpointError(f"{path}: expected a shard of a trace, found {error.strerror}; write the trace again") from None
            self._mapped |= {each: x for each, x in found.items() if self._shards.get(each) == path.name}
        return self._mapped[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._shards)

    def __len__(self) -> int:
        return len(self._shards)


def read_activations(network: Network, folder: Path) -> tuple[Activations, TraceIndex]:
    """Open the folder of a trace; sites are read when they are used.

    Raises:
        CheckpointError: the folder holds no trace, or one of other weights or of another format.
    """
    path = folder / INDEX
    try:
        content = path.read_bytes()
        version = _AnyVersion.model_validate_json(content).version
        if version != FORMAT_VERSION:
            raise CheckpointError(f"{path}: expected a trace of format {FORMAT_VERSION}, found format {version}; write the trace again")
        index = TraceIndex.model_validate_json(content)
    except (OSError, ValidationError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else "none"
        raise CheckpointError(f"{path}: expected the list of a trace's files, found {reason}; write the trace again") from None
    if index.weights != weights_digest(network):
        raise CheckpointError(f"{path}: expected a trace of this model's weights, found one of others; load that model, or trace again")
    tensors = MappedTensors(folder, index.shards)
    recorded = MappedTensors(folder, {name: shard for name, shard in index.shards.items() if not name.startswith("batch.")})
    activations = Activations(network, _unpack(index.batch, tensors), recorded, index.request.temperature)
    activations.autocast = index.request.autocast_dtype
    return activations, index


def weights_digest(network: Network) -> str:
    """Return a digest of all parameters and buffers, of their names, types, shapes and bytes."""
    digest = hashlib.sha256()
    for name, x in network.state_dict(keep_vars=True).items():
        digest.update(f"{name} {x.dtype} {tuple(x.shape)}\n".encode())
        for part in x.detach().flatten().split(DIGEST_ELEMENTS):
            digest.update(part.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


DIGEST_ELEMENTS = 2**20
"""Elements of a weight that are hashed at a time."""

_CLASSES: dict[str, Any] = {
    name: each
    for name, each in [*vars(batches).items(), *vars(inputs).items()]
    if isinstance(each, type) and dataclasses.is_dataclass(each)
}
"""Classes of batches by name."""


def _pack(x: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Describe a batch as JSON-serializable data; its tensors are added to ``tensors``."""
    if isinstance(x, Tensor):
        tensors[name] = x
        return {"tensor": name}
    if dataclasses.is_dataclass(x):
        values = {field.name: _pack(getattr(x, field.name), f"{name}.{field.name}", tensors) for field in dataclasses.fields(x)}
        return {"class": type(x).__name__, "fields": values}
    return {"value": json.loads(json.dumps(x))}


def _unpack(described: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Rebuild what ``_pack`` described."""
    if "tensor" in described:
        return tensors[described["tensor"]].clone()
    if "class" in described:
        values = {field: _unpack(value, tensors) for field, value in described["fields"].items()}
        return _CLASSES[described["class"]](**values)
    value = described["value"]
    return tuple(value) if isinstance(value, list) else value


def run_to_folder(
    given: Any, network: Network, batch: Any, patterns: Sequence[str], folder: Path, request: TraceRequest
) -> tuple[Tensor, Activations]:
    """Run a model and write the matching sites to a folder; return the logits and the mapped activations."""
    writer = TraceWriter(patterns, folder, network, batch, request)
    compiled = given is not network
    recorder = ActivationRecorder(patterns) if compiled else writer  # a compiled graph writes no files
    logits: Tensor = given(batch, recorder)
    for address, x in recorder.activations.items() if compiled else ():
        writer.keep(address, x)
    writer.keep("logits", logits)
    writer.flush(complete=True)
    return logits, read_activations(network, folder)[0]
