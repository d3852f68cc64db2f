"""Statistics of attention heads over many texts or images, of which no map is kept: some rows of all heads are in memory at a time."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from transom.config.architecture import TextModelConfig
from transom.config.vision import VisionTransformerConfig
from transom.errors import ConfigError
from transom.inspection.activations import Activations, find_network, parent, sequences_of, special_tokens_of, tokenizer_of
from transom.inspection.derive_attention import AttentionInputs, is_exact
from transom.inspection.trace import trace
from transom.inspection.whole_maps import n_heads_of, non_negative_map, token_masks, visible_pairs
from transom.layers.attention import SupportsAttentionWeights
from transom.layers.context import Part
from transom.models.base import Network

MAX_ELEMENTS = 2**21
"""Attention weights that are computed at a time, over all heads of a kind of layer."""


class HeadStatistics(NamedTuple):
    """Statistics of one head, means over all query tokens that see at least two keys; 0 if there are none, since all tokens skip its block.

    Attributes:
        address: address of the layer.
        head: index of the head.
        n_queries: number of query tokens.
        entropy: -sum_j A_ij ln A_ij, in nats.
        entropy_share: entropy divided by ln n of n visible keys, its maximum: 1 for uniform attention.
        distance: mean attention distance, sum_j A_ij |i - j|, in tokens. For images the distance between the centers of patches, in
            patches, over patches only (Dosovitskiy et al. 2021, figure 7).
        previous_token: mean weight of the token before the query (A_i,i-1).
        delimiter: mean weight of all delimiters: special tokens and punctuation.
        positional: share of the variance of the weights that relative position explains: with D = A - 1/n, the difference from uniform
            attention over n visible keys, and f(i - j) its mean over all other pairs at the same offset (0 if there are none),
            1 - sum (D_ij - f(i - j))^2 / sum D_ij^2, or 0 if that is negative.
    """

    address: str
    head: int
    n_queries: int
    entropy: float
    entropy_share: float
    distance: float
    previous_token: float
    delimiter: float
    positional: float


class HeadReport(NamedTuple):
    """Statistics of the heads of a model.

    Attributes:
        heads: statistics of each head.
        similarity: cosine of the maps of two heads, a mean over query tokens, (heads, heads); NaN for heads with other queries or keys,
            such as those of self-attention and cross-attention.
    """

    heads: list[HeadStatistics]
    similarity: Float[Tensor, "heads heads"]


class MapRows(NamedTuple):
    """Some rows of the maps of all heads of one kind of layer, in float64.

    Attributes:
        paths: addresses of the layers, whose heads follow each other.
        weights: attention weights; 0 where nothing is visible.
        visible: True where a query sees a key, for queries that see at least two keys and are no padding.
        queries: index of each query.
    """

    paths: list[str]
    weights: Float[Tensor, "batch heads row key"]
    visible: Bool[Tensor, "batch heads row key"]
    queries: list[int]


def attention_layers(network: Network) -> list[str]:
    """Return the addresses of the attention layers of a model; a recurrent decoder has one at most.

    Raises:
        ConfigError: the model has no attention, or a plugin's layers, whose weights are unknown.
    """
    modules = dict(network.named_modules())
    paths = [path for path in modules if path.endswith((".attn", ".cross"))]
    if not paths:
        raise ConfigError(f"expected a model with attention, found one of kind {network.config.kind!r}; use another run")
    for path in paths:
        if not isinstance(modules[path], SupportsAttentionWeights):
            raise ConfigError(f"{path}: expected a layer with attention weights, found {type(modules[path]).__name__}; use another run")
    return paths


def layers_by_kind(paths: Iterable[str]) -> dict[str, list[str]]:
    """Group layers whose maps have the same queries and keys: by stack, and self-attention or cross-attention.

    >>> layers_by_kind(["decoder.blocks.0.attn", "decoder.blocks.0.cross", "decoder.blocks.1.attn"])
    {'decoder attn': ['decoder.blocks.0.attn', 'decoder.blocks.1.attn'], 'decoder cross': ['decoder.blocks.0.cross']}
    """
    found = dict[str, list[str]]()
    for path in paths:
        found.setdefault(f"{path.partition('.')[0]} {path.rpartition('.')[2]}", []).append(path)
    return found


@torch.no_grad()
def map_rows(a: Activations, paths: list[str]) -> Iterator[MapRows]:
    """Yield the rows of the maps of all heads of some layers with the same queries and keys.

    Whole maps are in memory of approximations, whose weights no row gives alone, and of blocks that some tokens skip.

    Args:
        a: activations with queries and keys of the layers.
        paths: addresses of the layers.

    Raises:
        ConfigError: an approximation of attention implies negative weights.
    """
    query_tokens, key_tokens = token_masks(a, paths[0])
    n_batch, n_keys = key_tokens.shape
    n_heads = sum(n_heads_of(a, path) for path in paths)
    sliced = {path: is_exact(a.module(path)) and getattr(a.module(parent(path)), "depth", None) is None for path in paths}
    whole = {path: (non_negative_map(a, path), visible_pairs(a, path).cpu()) for path in paths if not sliced[path]}
    step = max(MAX_ELEMENTS // (n_batch * n_heads * n_keys), 1)
    for start in range(0, query_tokens.shape[1], step):
        queries = list(range(start, min(start + step, query_tokens.shape[1])))
        weights, visible = list[Tensor](), list[Tensor]()
        for path in paths:
            if path in whole:
                rows, seen = (x[:, :, queries] for x in whole[path])
            else:
                inputs = AttentionInputs.of(a, path, part=Part(queries=queries))
                rows = inputs.weights().double().cpu()
                seen = key_tokens[:, None, None] if inputs.args.mask is None else inputs.args.mask & key_tokens[:, None, None]
                seen = (seen & query_tokens[:, None, queries, None]).cpu()
            weights.append(rows)
            visible.append(seen.expand(rows.shape))
        all_visible = torch.cat(visible, 1)
        all_visible = all_visible & (all_visible.sum(-1, keepdim=True) > 1)
        yield MapRows(paths, torch.cat(weights, 1).where(all_visible, 0.0), all_visible, queries)


class Geometry(NamedTuple):
    """Offsets and distances between the queries and keys of a layer.

    Attributes:
        offsets: number of the offset of each pair, from 0; pairs at the same relative position share one.
        distances: distance of each pair, in tokens or patches; NaN for pairs with a class token.
    """

    offsets: Int[Tensor, "query key"]
    distances: Float[Tensor, "query key"]

    @classmethod
    def of(cls, network: Network, n_queries: int, n_keys: int, n_offsets: int) -> "Geometry":
        """Return the geometry of tokens in a line, or of patches in a grid, with and without a class token.

        Args:
            network: the model.
            n_queries: number of queries.
            n_keys: number of keys.
            n_offsets: largest offset between tokens: offset i - j has the number i - j + n_offsets; larger ones count as the largest.
        """
        if not isinstance(network.config, VisionTransformerConfig):
            offsets = torch.arange(n_queries)[:, None] - torch.arange(n_keys)
            return cls(offsets.clamp(-n_offsets, n_offsets) + n_offsets, offsets.abs().double())
        grid, extra = network.config.grid, network.config.n_class_tokens
        places = torch.cartesian_prod(torch.arange(grid), torch.arange(grid))
        steps = places[:, None] - places
        offsets, distances = torch.zeros(n_queries, n_keys, dtype=torch.long), torch.full((n_queries, n_keys), torch.nan).double()
        offsets[extra:, extra:] = (steps[..., 0] + grid) * 2 * grid + steps[..., 1] + grid
        distances[extra:, extra:] = steps.double().norm(dim=-1)
        if extra:
            offsets[:extra, extra:], offsets[extra:, :extra] = 1, 2  # a class token has no place
        return cls(offsets, distances)


class _OffsetBounds(NamedTuple):
    """Largest offset between tokens, and the number of numbers that ``Geometry.offsets`` has."""

    largest: int
    n_bins: int


def _offset_bounds(network: Network) -> _OffsetBounds:
    """Return the bounds of a model of texts or images."""
    config = network.config
    if isinstance(config, VisionTransformerConfig):
        return _OffsetBounds(config.grid, 4 * config.grid**2)
    assert isinstance(config, TextModelConfig)
    return _OffsetBounds(config.max_seq_len, 2 * config.max_seq_len + 1)


class _Sums:
    """Sums over the query tokens of all heads of one kind of layer."""

    def __init__(self, paths: list[str], n_heads: int, n_offsets: int) -> None:
        self.paths = paths
        zeros = torch.zeros(n_heads, dtype=torch.float64)
        self.counts, self.entropy, self.share, self.delimiter = (zeros.clone() for _ in range(4))
        self.distance, self.distance_counts, self.previous, self.previous_counts = (zeros.clone() for _ in range(4))
        self.similarity = zeros.new_zeros(n_heads, n_heads)
        self.by_offset, self.squares, self.pairs = (zeros.new_zeros(n_heads, n_offsets) for _ in range(3))

    def add(self, rows: MapRows, geometry: Geometry, delimiters: Bool[Tensor, "batch key"]) -> None:
        """Add rows of the maps."""
        w, visible = rows.weights, rows.visible
        n_visible = visible.sum(-1)
        used = n_visible > 0
        entropy = -torch.xlogy(w, w).sum(-1)
        self.counts += used.sum((0, 2))
        self.entropy += entropy.sum((0, 2))
        self.share += (entropy / n_visible.clamp(min=2).double().log()).sum((0, 2))
        self.delimiter += (w * delimiters[:, None, None]).sum((0, 2, 3))
        distances = geometry.distances[rows.queries]
        placed = w.where(~distances.isnan(), 0.0)
        mass = placed.sum(-1)
        self.distance += ((placed * distances.nan_to_num()).sum(-1) / mass.where(mass > 0, 1.0)).sum((0, 2))
        self.distance_counts += (mass > 0).sum((0, 2))
        before = torch.tensor(rows.queries)[:, None] - 1 == torch.arange(w.shape[-1])
        self.previous += (w * before).sum((0, 2, 3))
        self.previous_counts += (visible & before).sum((0, 2, 3))
        deviation = (w - w.sum(-1, keepdim=True) / n_visible[..., None].clamp(min=1)).where(visible, 0.0)
        offsets = geometry.offsets[rows.queries].flatten()
        for total, x in ((self.by_offset, deviation), (self.squares, deviation.square()), (self.pairs, visible)):
            total.index_add_(1, offsets, x.double().sum(0).flatten(1))
        unit = F.normalize(w, dim=-1)
        self.similarity += torch.einsum("bhrk,bgrk->hg", unit, unit)

    def explained_by_offset(self) -> Tensor:
        """Return ``HeadStatistics.positional`` of each head: with n pairs at an offset, D - f is n / (n - 1) times D minus its mean."""
        residual = self.squares - self.by_offset.square() / self.pairs.clamp(min=1)
        left_out = torch.where(self.pairs > 1, residual * (self.pairs / (self.pairs - 1).clamp(min=1)).square(), self.squares)
        whole = self.squares.sum(1)
        return (1 - left_out.sum(1) / whole.where(whole > 1e-12, 1e-300)).clamp(min=0) * (whole > 1e-12)

    def statistics(self, n_heads: Sequence[int]) -> list[HeadStatistics]:
        """Return the statistics of each head; ``n_heads`` is the number of heads of each layer."""
        counts = self.counts.clamp(min=1)
        columns = (
            self.entropy / counts,
            self.share / counts,
            self.distance / self.distance_counts.clamp(min=1),
            self.previous / self.previous_counts.clamp(min=1),
            self.delimiter / counts,
            self.explained_by_offset(),
        )
        owners = [(path, head) for path, n in zip(self.paths, n_heads, strict=True) for head in range(n)]
        return [
            HeadStatistics(*owner, int(n), *values)
            for owner, n, values in zip(owners, self.counts.tolist(), zip(*(x.tolist() for x in columns), strict=True), strict=True)
        ]


def head_statistics(model: Any, batches: Iterable[Any], delimiters: Mapping[str, Sequence[int]] | None = None) -> HeadReport:
    """Compute statistics of every attention head over batches, one after another, with certified attention weights.

    Tokens that skip a block are no queries or keys of it.

    Args:
        model: a run loaded by ``transom.load``, or a model.
        batches: batches or tensors, one pass each.
        delimiters: ids of the delimiters among the tokens of each side, "source" and "target"; None for those of the model
            (``delimiter_tokens``).

    Raises:
        ConfigError: there is no batch, or the model has no attention, or an approximation that implies negative weights.
        CertificationError: weights do not give the head outputs of a pass.
    """
    _, network = find_network(model, None)
    kinds = layers_by_kind(attention_layers(network))
    heads = {path: getattr(network.get_submodule(path), "n_heads", 1) for paths in kinds.values() for path in paths}
    known = delimiter_tokens(model) if delimiters is None else delimiters
    bounds = _offset_bounds(network)
    sums = {kind: _Sums(paths, sum(heads[path] for path in paths), bounds.n_bins) for kind, paths in kinds.items()}
    for batch in batches:
        _, traced = trace(network, batch, [f"{path}.weights" for paths in kinds.values() for path in paths])
        for certificate in traced.certify():
            certificate.check()
        for kind, paths in kinds.items():
            n_queries, n_keys = (mask.shape[1] for mask in token_masks(traced.activations, paths[0]))
            geometry = Geometry.of(network, n_queries, n_keys, bounds.largest)
            mask = _delimiter_mask(traced.activations, paths[0], known)
            for rows in map_rows(traced.activations, paths):
                sums[kind].add(rows, geometry, mask)
    if not all(bool(each.counts.any()) for each in sums.values()):
        raise ConfigError("batches: expected texts of at least two tokens, or images, found none; give others")
    found = [each for of_kind in sums.values() for each in of_kind.statistics([heads[path] for path in of_kind.paths])]
    similarity = torch.block_diag(*(each.similarity / each.counts.minimum(each.counts[:, None]) for each in sums.values()))
    kind_of_head = torch.tensor([i for i, each in enumerate(sums.values()) for _ in each.counts])
    return HeadReport(found, similarity.where(kind_of_head == kind_of_head[:, None], torch.nan))


def delimiter_tokens(model: Any) -> dict[str, list[int]]:
    """Return the ids of special tokens, and of tokens without a letter or digit, for each side of a model.

    Args:
        model: a run loaded by ``transom.load``, or a model, which has no tokenizer: its delimiters are the special tokens.
    """
    found = dict[str, list[int]]()
    for side in ("source", "target"):
        tokenizer, special = tokenizer_of(model, side), special_tokens_of(model, side)
        symbols = [] if tokenizer is None else tokenizer.symbols(range(tokenizer.vocab_size))
        without_letters = [token for token, symbol in enumerate(symbols) if not any(map(str.isalnum, symbol))]
        ends = {special.decoder_start, special.document_start, special.end, special.answer_start}
        found[side] = sorted({*without_letters, *ends})
    return found


def _delimiter_mask(a: Activations, path: str, delimiters: Mapping[str, Sequence[int]]) -> Bool[Tensor, "batch key"]:
    """Return True at the delimiters among the keys of a layer; images have none."""
    if isinstance(a.model.config, VisionTransformerConfig):
        return torch.zeros(len(a.batch.pixels), a.model.config.n_positions, dtype=torch.bool)
    is_source = path.endswith(".cross") or not path.startswith("decoder")
    tokens = (a.batch.source if is_source else sequences_of(a, path)).tokens.cpu()
    return torch.isin(tokens, torch.tensor(list(delimiters["source" if is_source else "target"]), dtype=torch.long))
