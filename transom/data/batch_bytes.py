"""Batches as bytes, to send them from one process of a run to another."""

import json
import sys
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from transom.data.batch import Batch


def batches_to_bytes(batches: Sequence[Batch]) -> bytes:
    """Return batches as bytes: a line of JSON with their structure, and the values of their tensors."""
    tensors = list[Tensor]()
    structure = json.dumps([_describe(batch, tensors) for batch in batches]).encode()
    return structure + b"\n" + b"".join(bytes(x.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data) for x in tensors)


def batches_from_bytes(data: bytes) -> list[Batch]:
    """Return the batches that another process of this program has turned into bytes."""
    structure, _, values = data.partition(b"\n")
    rest = bytearray(values)
    return [_build(each, rest) for each in json.loads(structure)]


def _describe(x: Any, tensors: list[Tensor]) -> Any:
    """Describe a value in JSON, and append its tensors to ``tensors``."""
    if isinstance(x, Tensor):
        tensors.append(x)
        return {"dtype": str(x.dtype).removeprefix("torch."), "shape": list(x.shape)}
    if is_dataclass(x):
        values = {field.name: _describe(getattr(x, field.name), tensors) for field in fields(x)}
        return {"module": type(x).__module__, "class": type(x).__qualname__, "values": values}
    assert x is None or isinstance(x, int | float | str | tuple), f"a field of a batch is a {type(x).__name__}"
    return x


def _build(described: Any, values: bytearray) -> Any:
    """Build the value that is described, and remove the values of its tensors from the beginning of ``values``."""
    if isinstance(described, list):
        return tuple(described)
    if not isinstance(described, dict):
        return described
    if "dtype" in described:
        x = torch.empty(described["shape"], dtype=getattr(torch, described["dtype"]))
        if x.nbytes:
            x.view(-1).view(torch.uint8).copy_(torch.frombuffer(values[: x.nbytes], dtype=torch.uint8))
            del values[: x.nbytes]
        return x
    kind = getattr(sys.modules[described["module"]], described["class"])
    return kind(**{name: _build(value, values) for name, value in described["values"].items()})
