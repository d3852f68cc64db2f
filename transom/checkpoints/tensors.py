"""Write and read safetensors files: tied tensors are stored once, a hash covers all, and sizes are checked before allocation."""

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from transom.config.migration import present_tensor_name
from transom.errors import CheckpointError
from transom.files.safe_read import require_regular_file

MAX_HEADER_BYTES = 16 * 2**20
"""Maximum size of a safetensors header in bytes; the header of a thousand layers takes about one million."""

METADATA_KEY = "transom"
"""Key of the only metadata entry of a file, a JSON text; safetensors would write several entries in varying order."""

_DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "U16": torch.uint16,
    "U32": torch.uint32,
    "U64": torch.uint64,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
}
"""PyTorch's types by their names in a safetensors header."""


class TensorSpec(NamedTuple):
    """Type and shape of a tensor in a file or in memory."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> Self:
        """Return the type and shape of a tensor in memory."""
        return cls(tensor.dtype, tuple(tensor.shape))

    @property
    def n_bytes(self) -> int:
        """Size of the values in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype in a safetensors header."""
    return next(name for name, each in _DTYPES.items() if each == dtype)


class Origin(NamedTuple):
    """Run and step at which a tensor file was written.

    Attributes:
        run: the run's id.
        step: number of optimizer steps.
    """

    run: str
    step: int


class PieceMetadata(BaseModel):
    """Place of a piece in its whole tensor.

    Attributes:
        shape: shape of the whole tensor.
        offset: index of the piece's first element in the whole tensor.
    """

    model_config = ConfigDict(strict=True, extra="forbid")

    shape: list[int]
    offset: list[int]


class FileMetadata(BaseModel):
    """Metadata of a tensor file.

    Attributes:
        tied: for each further name of a tied tensor, the name under which the tensor is stored.
        sha256: ``hash_tensors`` of the tensors; None in checkpoints of format 1, where only the manifest has a hash.
        run: id of the run; None in format 1 and for tensors written outside a run.
        step: number of optimizer steps; None if ``run`` is None.
        weights: digest of the model that the tensors belong to, for tensors that are no weights, such as a tuned lens.
        pieces: the place of each tensor in its whole tensor, in the file of one rank of several; None if the tensors are whole.
    """

    model_config = ConfigDict(strict=True, extra="forbid")

    tied: dict[str, str] = {}
    sha256: str | None = None
    run: str | None = None
    step: int | None = Field(default=None, ge=0)
    weights: str | None = None
    pieces: dict[str, PieceMetadata] | None = None

    @property
    def origin(self) -> Origin | None:
        """Run and step at which the file was written; None if they are not recorded."""
        return None if self.run is None or self.step is None else Origin(self.run, self.step)


def serialize_tensors(
    tensors: Mapping[str, Tensor], origin: Origin | None = None, sha256: str | None = None, weights: str | None = None
) -> bytes:
    """Return the bytes of a safetensors file with the tensors, and with their hash and origin in its metadata.

    Args:
        tensors: tensors by name; a tensor with several names is stored once, and the metadata lists its other names.
        origin: run and step; None for tensors written outside a run.
        sha256: ``hash_tensors(tensors)``, if already computed.
        weights: digest of the model that the tensors belong to; None for weights.
    """
    own: dict[str, Tensor] = {}
    tied: dict[str, str] = {}
    first: dict[object, str] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        kept = first.setdefault(_storage_key(tensor) or name, name)
        if kept == name:
            own[name] = _own_memory(tensor, storages)
        else:
            tied[name] = kept
    own_run = {} if origin is None else origin._asdict()
    metadata = FileMetadata(tied=tied, sha256=sha256 or hash_tensors(tensors), weights=weights, **own_run)
    return save(own, {METADATA_KEY: metadata.model_dump_json(exclude_none=True)})


def hash_tensors(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of the names, types, shapes and bytes of tensors, independent of the order of the mapping."""
    total = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        update_hash(total, name, tensor)
    return total.hexdigest()


def update_hash(total: Any, name: str, tensor: Tensor) -> None:
    """Add a tensor to the hash of ``hash_tensors``, which takes tensors in the order of their names."""
    total.update(repr((name, str(tensor.dtype), tuple(tensor.shape))).encode())
    total.update(bytes_of(tensor.detach().cpu().contiguous()))


def bytes_of(tensor: Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor on the CPU."""
    data: memoryview = tensor.reshape(-1).view(torch.uint8).numpy().data
    return data


def read_specs(path: Path) -> dict[str, TensorSpec]:
    """Return type and shape of each tensor in a safetensors file by name, without reading values; a tied tensor has one name."""
    file = open_tensor_file(path)
    return {name: spec for name, spec in file.specs.items() if name not in file.metadata.tied}


def read_metadata(path: Path) -> FileMetadata:
    """Return the metadata of a safetensors file without reading its tensors."""
    return open_tensor_file(path).metadata


def read_tensors(path: Path, expected: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """Read a safetensors file into new memory.

    Args:
        path: the file.
        expected: state of a model: the file must have the same names and shapes, and floating-point values for the same tensors. None to
            accept any tensors.

    Returns:
        The tensors by name, with names of formats 1 and 2 replaced by the present ones. Tied names share one tensor; tied names that
        ``expected`` lacks are omitted.

    Raises:
        CheckpointError: the file is damaged, not safetensors, or of another model. All but a wrong hash is detected before memory is
            allocated.
    """
    file = open_tensor_file(path)
    if file.metadata.pieces is not None:
        raise CheckpointError(
            f"{path}: expected whole tensors, found the pieces of one rank; give a run or a checkpoint, not one file of it"
        )
    wanted = {name: spec for name, spec in file.specs.items() if expected is None or name in expected or name not in file.metadata.tied}
    if expected is not None:
        _check_specs(path, wanted, {name: TensorSpec.of(tensor) for name, tensor in expected.items()})
    # A clone owns aligned memory: a mapped file may change, and alignment may change the last bit of a matrix product.
    own = {name: file.mapped(name).clone() for name in file.specs if name not in file.metadata.tied}
    tensors = {name: own[file.metadata.tied.get(name, name)] for name in file.specs}
    _verify_hash(path, file, tensors)
    return {name: tensors[name] for name in wanted}


def verify_tensors(path: Path) -> None:
    """Compare the tensors of a file with the hash in its metadata, if there is one; they are mapped into memory, not copied.

    Raises:
        CheckpointError: the file is damaged, no safetensors file, or has another hash.
    """
    file = open_tensor_file(path)
    _verify_hash(path, file, {name: file.mapped(name) for name in file.specs})


def _verify_hash(path: Path, file: "TensorFile", tensors: Mapping[str, Tensor]) -> None:
    if file.metadata.sha256 is not None and hash_tensors({file.stored[name]: x for name, x in tensors.items()}) != file.metadata.sha256:
        raise CheckpointError(f"{path}: damaged, the hash of its tensors differs from the one in its metadata")


def map_tensors(path: Path) -> dict[str, Tensor]:
    """Map the tensors of a safetensors file into memory, without reading or checking them: a page is read when it is used.

    Changes of a tensor are not written to the file.

    Raises:
        CheckpointError: the file is damaged or no safetensors file.
        OSError: the file cannot be opened.
    """
    specs = open_tensor_file(path).specs  # checks that the file is complete
    with path.open("rb") as file:
        n_header = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(n_header))
    storage = torch.UntypedStorage.from_file(str(path), False, path.stat().st_size)
    tensors = {}
    for name, (dtype, shape) in specs.items():
        start, end = (8 + n_header + offset for offset in header[name]["data_offsets"])
        tensors[name] = torch.empty(0, dtype=torch.uint8).set_(storage, start, (end - start,)).view(dtype).view(shape)  # type: ignore[call-overload]
    return tensors


def read_weights(path: Path, expected: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """Read a safetensors file of weights; see ``read_tensors``.

    Raises:
        CheckpointError: as in ``read_tensors``, or a weight is NaN or infinite.
    """
    tensors = read_tensors(path, expected)
    require_finite(path, tensors)
    return tensors


def require_finite(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Raise an error if a weight is NaN or infinite.

    Raises:
        CheckpointError: a tensor has such values; the message names the first such tensor and counts its values.
    """
    for name, tensor in tensors.items():
        if not _is_finite(tensor):
            n_bad = int((~tensor.isfinite()).sum())
            raise CheckpointError(
                f"{path}: expected finite weights, found {n_bad:,} of {tensor.numel():,} values of {name[:200]!r} NaN or infinite; the"
                " training run diverged or the file was altered; use an earlier checkpoint or train again"
            )


def _is_finite(tensor: Tensor) -> bool:
    """Return whether no value is NaN or infinite, in one pass without a mask: the extremes are NaN if a value is."""
    if not tensor.is_floating_point() or not tensor.numel():
        return True
    return all(bool(each.isfinite()) for each in tensor.aminmax())


def load_weights_into(model: nn.Module, path: Path) -> None:
    """Copy the weights of a safetensors file into a model of the same shapes.

    Raises:
        CheckpointError: as in ``read_weights``.
    """
    model.load_state_dict(read_weights(path, expected=model.state_dict()))


class TensorFile(NamedTuple):
    """A safetensors file with a checked header.

    Attributes:
        handle: the file as opened by ``safetensors.safe_open``.
        specs: type and shape of each tensor by present name, tied names included.
        metadata: metadata of the file, with present names of tensors.
        stored: name of each tensor in the file by present name; the two differ in formats 1 and 2.
    """

    handle: Any
    specs: dict[str, TensorSpec]
    metadata: FileMetadata
    stored: dict[str, str]

    def mapped(self, name: str) -> Tensor:
        """Return a tensor whose memory is the file: a page is read when it is used."""
        tensor: Tensor = self.handle.get_tensor(self.stored[self.metadata.tied.get(name, name)])
        return tensor


def open_safetensors(path: Path) -> tuple[Any, dict[str, TensorSpec]]:
    """Open a safetensors file of any library; return its handle, and dtype and shape of each tensor by name.

    Raises:
        CheckpointError: the file is damaged, no safetensors file, or has a tensor of a dtype that PyTorch lacks.
    """
    _check_format(path)
    try:
        handle: Any = safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: damaged, expected a complete safetensors file ({error})") from error
    return handle, {name: _spec(path, name, handle) for name in handle.keys()}  # noqa: SIM118 - the handle is no mapping


def open_tensor_file(path: Path) -> TensorFile:
    """Open a tensor file of transom, of which only the header is read.

    Raises:
        CheckpointError: the file is damaged, no safetensors file, or its metadata do not fit its tensors.
    """
    handle, specs = open_safetensors(path)
    try:
        metadata = FileMetadata.model_validate_json((handle.metadata() or {}).get(METADATA_KEY, "{}"))
    except ValidationError as error:
        raise CheckpointError(f"{path}: damaged, its metadata (table of tied tensors, hash, run, step) cannot be read") from error
    if not all(kept in specs and name not in specs for name, kept in metadata.tied.items()):
        raise CheckpointError(f"{path}: damaged, its table of tied tensors does not match its tensors")
    specs |= {name: specs[kept] for name, kept in metadata.tied.items()}
    present = {name: present_tensor_name(name) for name in specs}
    tied = {present[name]: present[kept] for name, kept in metadata.tied.items()}
    metadata = metadata.model_copy(update={"tied": tied})
    return TensorFile(handle, {present[name]: spec for name, spec in specs.items()}, metadata, {new: old for old, new in present.items()})


def _storage_key(tensor: Tensor) -> object:
    """Return a key that is equal for tensors with the same memory, type and shape; None for an empty tensor, which has no memory."""
    if tensor.numel() == 0:
        return None
    return tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _own_memory(tensor: Tensor, storages: set[int]) -> Tensor:
    """Copy a tensor to contiguous CPU memory, unless it already has such memory that no earlier tensor shares.

    ``storages`` holds the storage pointers of earlier tensors, and gets that of this one.
    """
    tensor = tensor.detach().cpu().contiguous()
    if tensor.untyped_storage().nbytes() != tensor.nbytes or tensor.untyped_storage().data_ptr() in storages:
        return tensor.clone()
    storages.add(tensor.untyped_storage().data_ptr())
    return tensor


def _check_format(path: Path) -> None:
    """Raise an error if the first bytes of a file do not declare a safetensors header that fits into the file."""
    require_regular_file(path)
    with path.open("rb") as file:
        start = file.read(8)
    size, header = path.stat().st_size, int.from_bytes(start, "little")
    if size >= 8 and header <= min(size - 8, MAX_HEADER_BYTES):
        return
    if start[:1] == b"\x80" or start[:4] == b"PK\x03\x04":
        raise CheckpointError(
            f"{path}: expected safetensors, found a pickle (torch.save); the file was not opened, since a pickle can run code"
        )
    raise CheckpointError(
        f"{path}: expected safetensors, found a truncated file or another format: the first 8 bytes declare a header of {header:,} bytes,"
        f" the file has {size:,}; a header has at most {MAX_HEADER_BYTES:,}"
    )


def _spec(path: Path, name: str, handle: Any) -> TensorSpec:
    tensor_slice = handle.get_slice(name)
    if (dtype := _DTYPES.get(tensor_slice.get_dtype())) is None:
        raise CheckpointError(f"{path}: tensor {name[:200]!r} has the type {tensor_slice.get_dtype()}, which transom cannot read")
    return TensorSpec(dtype, tuple(tensor_slice.get_shape()))


def _check_specs(path: Path, found: Mapping[str, TensorSpec], expected: Mapping[str, TensorSpec]) -> None:
    """Raise an error unless a file has exactly the tensors of a model, with the same shapes and kinds of type."""
    missing, unexpected = [name for name in expected if name not in found], [name for name in found if name not in expected]
    if missing or unexpected:
        parts = [
            f"{len(names)} {word} (first {names[0][:200]!r})" for names, word in ((missing, "missing"), (unexpected, "unexpected")) if names
        ]
        raise CheckpointError(
            f"{path}: expected the tensors of the model in config.json, found tensors of another model: {', '.join(parts)}"
        )
    for name, spec in expected.items():
        if found[name].shape != spec.shape:
            raise CheckpointError(f"{path}: expected shape {spec.shape} of tensor {name!r}, found {found[name].shape}")
        if found[name].dtype.is_floating_point != spec.dtype.is_floating_point:
            raise CheckpointError(f"{path}: expected type {spec.dtype} of tensor {name!r}, found {found[name].dtype}")
