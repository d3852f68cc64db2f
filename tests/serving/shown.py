"""A served run, its input, and an independent trace of it."""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

import transom
from tests.serving.runs import INPUTS, TARGET
from transom.data.batch import translation_batch
from transom.inspection.example_batch import build_example_batch
from transom.inspection.trace import Trace
from transom.serving.server import ExploreServer

HEAD, QUERY = 1, 2
"""The head and the token that the pages are about."""


class Shown:
    """What a page shows: a served run, its input, and an independent trace."""

    def __init__(self, server: ExploreServer, run: Path, file: Path) -> None:
        """Trace a freshly loaded run on its input; a run of pictures reads the file."""
        self.server, self.run = server, transom.load(run, "fp32")
        text = INPUTS.get(run.name)
        self.input: dict[str, Any] = {"text": text}
        if text is None:
            self.input = {
                "file": server.explorer.answer("upload", {"name": "a", "data": base64.b64encode(file.read_bytes()).decode()})["file"]
            }
            batch = build_example_batch(self.run, None, file, "refuse").batch
        elif run.name == "translator":
            self.input["target"] = TARGET
            batch = translation_batch([self.run.tokenizers.source.encode(text)], [self.run.tokenizers.target.encode(TARGET)], [0])
        else:
            batch = build_example_batch(self.run, text, None, "refuse").batch
        self.batch = batch
        self.logits, self.trace = transom.trace(self.run, batch, ["*"], store="all")

    @property
    def layer(self) -> str:
        """Address of the last attention layer."""
        return [each for each in self.trace.quantities if each.endswith((".attn.weights", ".cross.weights"))][-1].removesuffix(".weights")

    @property
    def embedding(self) -> str:
        """Name of the last embedding."""
        return "target_embedding" if "target_embedding.resid" in self.trace.quantities else "embedding"

    def state(self, **fields: Any) -> dict[str, Any]:
        """Return a state of the page."""
        return {"input": self.input, "details": True, "head": HEAD, "tokens": {"encoder": QUERY, "decoder": QUERY}, **fields}


def part_of(trace: Trace, address: str, index: Mapping[str, int] = {}) -> Tensor:
    """Return a quantity of the first row of the batch at fixed indices of some axes."""
    x = trace[address]
    axes = trace.axes(address, x.ndim)
    return x[tuple(0 if axis == "batch" else index.get(axis, slice(None)) for axis in axes)]
