"""Tiles of the attention map of one head: parts of a map that does not fit into memory or on a screen."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from transom.errors import ConfigError
from transom.files.message import phrase
from transom.inspection.attention_map import AttentionMap
from transom.serving.cache import Cache

SIZE = 64
"""Rows and columns of a tile."""

MAX_ROWS = 4
"""Rows of tiles in memory, each of ``SIZE`` queries with all their keys."""


N_CERTIFIED = 4
"""Queries of a row of tiles whose weights are compared with the kernel's head outputs."""


class Tile(NamedTuple):
    """Weights of some queries on some keys.

    At level L a row is every 2^L-th query, and a column holds the sum of the weights on 2^L keys; level 0 is the map itself.

    Attributes:
        weights: sums of weights.
        queries: position of each query.
        keys: position of the first key of each column.
        stride: 2^L.
        ratio: largest difference between weights times V and the kernel's head outputs, as a multiple of the bound of rounding, of the
            queries that were compared; None if none were.
    """

    weights: Float[Tensor, "query column"]
    queries: list[int]
    keys: list[int]
    stride: int
    ratio: float | None


class StoredMap:
    """Weights of one head that are in memory: those of an edited layer, an approximation or a recurrent decoder.

    Attributes:
        shape: numbers of queries and keys.
    """

    def __init__(self, weights: Float[Tensor, "query key"]) -> None:
        """Store the weights."""
        self._weights, self.shape = weights, (weights.shape[0], weights.shape[1])

    def rows(self, queries: list[int]) -> Float[Tensor, "rows key"]:
        """Return the weights of some queries on all keys."""
        return self._weights[queries]


class TiledMap:
    """The map of one head, of which some rows of tiles stay in memory."""

    def __init__(self, attention_map: AttentionMap | StoredMap, certified: bool = True) -> None:
        """Store the map, and whether its weights are to be compared with the kernel's head outputs, which an edit may have changed."""
        self._map, self._is_certified = attention_map, certified
        self._rows = Cache[tuple[Tensor, float | None]](MAX_ROWS)

    def tile(self, level: int, row: int, column: int) -> Tile:
        """Return a tile; tiles at the right and lower edge are smaller.

        Args:
            level: exponent of the stride.
            row: row of the tile, from 0.
            column: column of the tile, from 0.

        Raises:
            ConfigError: there is no such tile.
            CertificationError: the weights do not give the head outputs that the kernel computed.
        """
        stride, (n_queries, n_keys) = 2**level, self._map.shape
        queries = list(range(row * SIZE * stride, min((row + 1) * SIZE * stride, n_queries), stride))
        first, last = column * SIZE * stride, min((column + 1) * SIZE * stride, n_keys)
        if not queries or first >= last:
            n_rows, n_columns = (-(-n // (SIZE * stride)) for n in self._map.shape)
            english = "tile: expected one of {rows} x {columns} tiles at level {level}, found row {row}, column {column}"
            place = {"level": str(level), "row": str(row), "column": str(column)}
            raise ConfigError(phrase("errors.tile", english, rows=n_rows, columns=n_columns, **place))
        rows, ratio = self._rows.get((level, row), lambda: self._certified(queries))
        weights = rows[:, first:last]
        columns = -(-(last - first) // stride)
        padded = torch.nn.functional.pad(weights, (0, columns * stride - (last - first)))
        return Tile(padded.reshape(len(queries), columns, stride).sum(-1), queries, list(range(first, last, stride)), stride, ratio)

    def _certified(self, queries: list[int]) -> tuple[Tensor, float | None]:
        """Compute the weights of some queries on all keys, and compare those of ``N_CERTIFIED`` of them with the kernel's head outputs."""
        if isinstance(self._map, StoredMap) or not self._is_certified:
            return self._map.rows(queries), None
        certificate = self._map.certify(queries[:: max(len(queries) // N_CERTIFIED, 1)])
        certificate.check()
        return self._map.rows(queries), certificate.ratio
