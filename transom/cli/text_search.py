"""Similarity search among embedded texts, for ``transom embed``."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from transom.checkpoints.tensors import serialize_tensors
from transom.cli.inputs import Answer, ProgressCallback
from transom.cli.options import TRUNCATED_NOTE, WINDOWS_NOTE
from transom.cli.output import note_too_long, print_result
from transom.decoding.predictors.embedder import Embedder
from transom.decoding.predictors.long_texts import LongTextPolicy
from transom.files.atomic_io import write_file


class TextSearch:
    """Collection of embedded texts that is searched by cosine similarity."""

    def __init__(self, embedder: Embedder, normalize: bool, too_long: LongTextPolicy, top: int) -> None:
        """Create an empty collection.

        Args:
            embedder: embedder of a run.
            normalize: scale the vectors to unit length.
            too_long: treatment of texts longer than the context window.
            top: number of similar texts that ``nearest`` finds for each text.
        """
        self._embedder, self._normalize, self._too_long, self._top = embedder, normalize, too_long, top
        self._texts, self._vectors = list[str](), list[Any]()
        self._n_windows, self._n_dropped = list[int](), list[int]()
        self._n_indexed: int | None = None

    def index(self, texts: list[str], notify: ProgressCallback) -> None:
        """Embed the texts among which ``nearest`` searches."""
        self.add(texts, notify)
        self._n_indexed = len(self._texts)

    def add(self, texts: list[str], notify: ProgressCallback) -> Any:
        """Embed texts, add them to the collection, and return their vectors."""
        found = self._embedder.embed_with_details(texts, self._normalize, self._too_long, notify)
        self._texts += texts
        self._vectors += list(found.vectors)
        self._n_windows += found.windows
        self._n_dropped += found.n_dropped_tokens
        return found.vectors

    def compare(self, texts: list[str], notify: ProgressCallback) -> list[Answer]:
        """Answer each text with its cosine similarity to each of the given texts."""
        records = self._records(texts, self.add(texts, notify))
        cosines = self._cosines(range(len(texts)), len(texts))
        rows = ["  ".join(f"{cosine:6.3f}" for cosine in row) + f"  {text}" for row, text in zip(cosines.tolist(), texts, strict=True)]
        return [Answer(record, [row]) for record, row in zip(records, rows, strict=True)]

    def nearest(self, texts: list[str], notify: ProgressCallback) -> list[Answer]:
        """Answer each text with the most similar texts among those that ``index`` embedded.

        If ``index`` was not called, search the texts of earlier calls instead.
        """
        first, n_kept = len(self._texts), len(self._texts) if self._n_indexed is None else self._n_indexed
        records = self._records(texts, self.add(texts, notify))
        cosines = self._cosines(range(first, len(self._texts)), n_kept)
        answers = []
        for text, record, row in zip(texts, records, cosines, strict=True):
            best = np.argsort(-row, kind="stable")[: self._top].tolist()
            record["nearest"] = [{"text": self._texts[i], "line": i + 1, "similarity": float(row[i])} for i in best]
            found = [f"  {row[i]:6.3f}  {self._texts[i]}" for i in best]
            answers.append(Answer(record, [text, *(found or ["  nothing to compare it with yet"])] if len(texts) > 1 else found or [""]))
        return answers

    def write(self, output: Path, as_json: bool) -> None:
        """Write the vectors of all texts to a safetensors file."""
        write_file(output, lambda: serialize_tensors({"embeddings": torch.stack(self._vectors)}))
        counts = {"texts": len(self._texts), "n_too_long": self._n_too_long, "n_dropped_tokens": sum(self._n_dropped)}
        value = {"file": str(output), **counts, "d_model": len(self._vectors[0])}
        print_result(value, as_json, [f"wrote {output}: {len(self._texts):,} vectors"])

    def note_too_long(self) -> None:
        """Print a note on how many texts exceeded the context window, if there are any."""
        treatment = TRUNCATED_NOTE if self._too_long == "truncate" else WINDOWS_NOTE
        max_tokens = self._embedder.max_tokens
        note_too_long(self._n_too_long, len(self._texts), "texts", max_tokens, treatment, sum(self._n_dropped))

    @property
    def _n_too_long(self) -> int:
        return sum(n > 1 or dropped > 0 for n, dropped in zip(self._n_windows, self._n_dropped, strict=True))

    def _records(self, texts: Sequence[str], vectors: Any) -> list[dict[str, Any]]:
        details = zip(texts, vectors.tolist(), self._n_dropped[-len(texts) :], self._n_windows[-len(texts) :], strict=True)
        return [
            {"text": text, "embedding": vector, "n_dropped_tokens": dropped, "windows": windows}
            for text, vector, dropped, windows in details
        ]

    def _cosines(self, queries: Sequence[int], n_kept: int) -> NDArray[Any]:
        """Return the cosine similarities of the texts with indices ``queries`` to the first ``n_kept`` texts."""
        vectors = torch.stack(self._vectors).double().numpy()
        unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return unit[list(queries)] @ unit[:n_kept].T
