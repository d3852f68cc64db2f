"""Alter the files of a run so that their hashes hold: tensors with their seal, checkpoints with their manifest."""

import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bad_input.case import Draw

WIDTHS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "U8": 1, "I8": 1, "BOOL": 1, "C64": 8, "F8_E4M3": 1}


class TensorFile:
    """A safetensors file, taken apart: its metadata, and each tensor's type, shape and bytes."""

    def __init__(self, path: Path) -> None:
        """Read a file."""
        self.path = path
        content = path.read_bytes()
        size = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + size])
        self.metadata: dict[str, str] = header.pop("__metadata__", {})
        data = content[8 + size :]
        self.tensors = {name: (each["dtype"], each["shape"], data[slice(*each["data_offsets"])]) for name, each in header.items()}

    def write(self, seal: bool = True) -> None:
        """Write it in place, with the hash that its tensors have now where a hash was."""
        self._write()
        note = json.loads(self.metadata.get("transom", "{}")) if seal else {}
        if "sha256" in note:
            from safetensors.torch import load_file

            from transom.checkpoints.tensors import hash_tensors

            tensors = load_file(self.path)
            note["sha256"] = hash_tensors(tensors | {name: tensors[kept] for name, kept in note.get("tied", {}).items() if kept in tensors})
            self.metadata["transom"] = json.dumps(note)
            self._write()

    def _write(self) -> None:
        header: dict[str, Any] = {"__metadata__": self.metadata} if self.metadata else {}
        data = b""
        for name, (dtype, shape, content) in sorted(self.tensors.items(), key=lambda item: -WIDTHS.get(item[1][0], 1)):
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
            data += content
        spelled = json.dumps(header).encode()
        spelled += b" " * (-len(spelled) % 8)
        self.path.write_bytes(len(spelled).to_bytes(8, "little") + spelled + data)


def resized(file: TensorFile, draw: Draw) -> str:
    """Give a tensor another shape; return what was done."""
    name = draw.choice(sorted(file.tensors))
    dtype, shape, content = file.tensors[name]
    width = WIDTHS[dtype]
    ways = [[], [0], [len(content) // width + draw.randint(1, 9)], [1, *shape], [*shape, 2], [draw.randint(1, 3)]]
    new = draw.choice([way for way in ways if way != shape])
    n = 1
    for side in new:
        n *= side
    file.tensors[name] = dtype, new, (content * (n * width // max(len(content), 1) + 1))[: n * width].ljust(n * width, b"\0")
    return f"{name} of shape {new} in place of {shape}"


def retyped(file: TensorFile, draw: Draw) -> str:
    """Give a tensor another type; return what was done."""
    name = draw.choice(sorted(file.tensors))
    dtype, shape, content = file.tensors[name]
    new = draw.choice([each for each in ("F64", "I64", "I32", "U8", "BOOL", "C64", "F8_E4M3", "I16") if each != dtype])
    n = len(content) // WIDTHS[dtype]
    file.tensors[name] = new, shape, bytes(n * WIDTHS[new])
    return f"{name} of type {new} in place of {dtype}"


def renamed(file: TensorFile, draw: Draw) -> str:
    """Give a tensor another name; return what was done."""
    name = draw.choice(sorted(file.tensors))
    new = draw.choice([name + "x", name[:-1], "", "x" * 9_000, "\x1b[31m", "../x", "model", name.upper() + "."])
    file.tensors[new] = file.tensors.pop(name)
    return f"{name} called {new!r:.40}"


def removed(file: TensorFile, draw: Draw) -> str:
    """Leave out a tensor, or all; return what was done."""
    if draw.random() < 0.2:
        file.tensors.clear()
        return "no tensors"
    name = draw.choice(sorted(file.tensors))
    del file.tensors[name]
    return f"no {name}"


def added(file: TensorFile, draw: Draw) -> str:
    """Add a tensor; return what was done."""
    name = draw.choice(["x", "0.x", "999.exp_avg", "extra.weight", "\x1b[31m", "x" * 9_000])
    file.tensors[name] = draw.choice([("F32", [2], bytes(8)), ("I64", [], bytes(8)), ("F32", [0], b"")])
    return f"{name!r:.40} beside the others"


def not_finite(file: TensorFile, draw: Draw) -> str:
    """Put NaN or infinities into a tensor; return what was done."""
    name = draw.choice(sorted(each for each in file.tensors if file.tensors[each][0] == "F32" and file.tensors[each][2]))
    dtype, shape, content = file.tensors[name]
    n, value = len(content) // 4, draw.choice([float("nan"), float("inf"), float("-inf")])
    numbers = list(struct.unpack(f"<{n}f", content))
    for place in draw.choice([range(n), [draw.randrange(n)]]):
        numbers[place] = value
    file.tensors[name] = dtype, shape, struct.pack(f"<{n}f", *numbers)
    return f"{value} in {name}"


TENSOR_DAMAGE: tuple[Callable[[TensorFile, Draw], str], ...] = (resized, retyped, renamed, removed, added)
"""What can be done to tensors that no model fits any more."""


def reseal(folder: Path) -> None:
    """Write into a checkpoint's manifest the sizes and hashes that its files have now; files that are gone leave it."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    entries = {}
    for name, entry in manifest["files"].items():
        if (folder / name).is_file():
            content = (folder / name).read_bytes()
            entries[name] = entry | {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    path.write_text(json.dumps(manifest | {"files": entries}))


def edit_json(path: Path, change: Callable[[Any], object]) -> None:
    """Change a JSON document in place; NaN and infinities are spelled as Python does."""
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def at(document: Any, path: tuple[str, ...]) -> Any:
    """Return the value below a document."""
    for name in path:
        document = document[name]
    return document


BAD_VALUES: tuple[Any, ...] = (
    "3",
    "",
    None,
    True,
    [],
    [1],
    {},
    {"a": 1},
    1.5,
    float("nan"),
    float("inf"),
    float("-inf"),
    -1,
    -(10**30),
    10**30,
    1e308,
)
"""Values that a whole number from 0 is not."""
