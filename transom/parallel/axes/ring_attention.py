"""Ring attention: exact attention over tokens that are split over ranks, without all keys and values on any rank (Liu et al. 2023).

Each rank keeps its queries. Keys and values move around the ring of ranks: after n - 1 exchanges each rank has seen those of all ranks,
one chunk at a time. The softmax is computed online: maximum and sum of the exponentials are corrected with every tile (Milakov &
Gimelshein 2018). Within a chunk, tiles of queries and keys without a visible pair are skipped, so that no larger matrix than a tile is
stored. The backward pass recomputes the weights from the logsumexp of each query, while the gradients of keys and values travel with
their chunk back to the rank that it comes from.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.distributed import P2POp, ProcessGroup, batch_isend_irecv, irecv, isend

from transom.layers.dropout import KeyedMasks
from transom.parallel.axes.chunk_mask import ChunkMask, Redistribution, Tile


class _Redistribute(Function):
    """Exchange of tokens; backward, the reverse exchange."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, exchange: Redistribution, group: ProcessGroup) -> Tensor:
        ctx.exchange, ctx.group = exchange, group
        return exchange.run(x, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.exchange.reverse.run(grad, ctx.group), None, None


class RingOptions(NamedTuple):
    """Arguments of ring attention besides queries, keys and values.

    Attributes:
        mask: mask of this rank's queries and all keys.
        group: ranks of the ring.
        softcap: c of c tanh(S / c), or None.
        dropout: probability of dropping a weight.
        dropout_masks: keyed masks of the weights of this rank's queries and all keys; None without dropout.
    """

    mask: ChunkMask
    group: ProcessGroup
    softcap: float | None = None
    dropout: float = 0.0
    dropout_masks: KeyedMasks | None = None

    def dropped(self, p: Float[Tensor, "batch n_heads tile_queries tile_keys"], tile: Tile, owner: int) -> Tensor:
        """Return weights or their gradients after dropout."""
        if self.dropout_masks is None:
            return p
        rows, mask = torch.arange(len(p), device=p.device), self.mask
        queries, keys = (x.expand(len(p), -1) for x in (mask.query_indices[tile.queries], mask.key_indices[owner][tile.keys]))
        masks = self.dropout_masks._replace(offsets=self.dropout_masks.offsets[:1])  # the indices are those of the whole
        return p * masks.draw_at(p, self.dropout, rows, queries, keys)

    def scores(
        self,
        q: Float[Tensor, "batch n_heads query d_head"],
        k: Float[Tensor, "batch kv_heads key d_head"],
        tile: Tile,
        owner: int,
    ) -> tuple[Float[Tensor, "batch n_heads tile_queries tile_keys"], Tensor | None]:
        """Return the scores of a tile, minus infinity at invisible pairs, and the derivative of the softcap, if any."""
        q, k = q[:, :, tile.queries], k[:, :, tile.keys]
        s = (_group_heads(q * q.shape[3] ** -0.5, k.shape[1]) @ k.transpose(-2, -1)).view(*q.shape[:3], k.shape[2])
        s, slope = s.to(torch.promote_types(s.dtype, torch.float32)), None
        if self.softcap is not None:
            t = (s / self.softcap).tanh_()
            s, slope = self.softcap * t, 1 - t * t
        pair = self.mask.queries.select(tile.queries), self.mask.key_chunks[owner].select(tile.keys)
        if self.mask.position is not None and (bias := self.mask.position.bias(pair[0].positions, pair[1].positions)) is not None:
            s = s + bias
        return s.masked_fill(~self.mask.rule.dense(*pair), -torch.inf) if tile.masked else s, slope


def _group_heads(x: Float[Tensor, "batch n_heads length width"], kv_heads: int) -> Float[Tensor, "batch kv_heads rows width"]:
    """Concatenate the query heads that share a key-value head along the axis of tokens, so that keys need not be repeated."""
    return x.reshape(len(x), kv_heads, -1, x.shape[3])


class _Exchange:
    """Tensors on their way to the next rank of the ring, and those of the previous rank on their way here."""

    def __init__(self, parts: Sequence[Tensor], n_received: int, group: ProcessGroup, tag: int) -> None:
        """Start to send ``parts``, (batch, heads, length, width), and to receive as many of length ``n_received``."""
        after, before = (group.rank() + 1) % group.size(), (group.rank() - 1) % group.size()
        self._sent = [x.contiguous() for x in parts]
        self._received = [x.new_empty(*x.shape[:2], n_received, x.shape[3]) for x in parts]
        sends = [P2POp(isend, x, group=group, tag=tag + i, group_peer=after) for i, x in enumerate(self._sent) if x.numel()]
        receives = [P2POp(irecv, x, group=group, tag=tag + i, group_peer=before) for i, x in enumerate(self._received) if x.numel()]
        self._works = batch_isend_irecv(sends + receives) if sends or receives else []

    def wait(self) -> list[Tensor]:
        """Return what the previous rank sent."""
        for work in self._works:
            work.wait()
        return self._received


def _turns(parts: list[Tensor], options: RingOptions) -> Iterator[tuple[int, list[Tensor]]]:
    """Yield each rank with its keys and values, from this rank backwards; the next ones are received during each turn."""
    group, mask = options.group, options.mask
    for turn in range(group.size()):
        owner = (group.rank() - turn) % group.size()
        last = turn == group.size() - 1
        exchange = None if last else _Exchange(parts, len(mask.key_indices[owner - 1]), group, tag=0)
        yield owner, parts
        if exchange is not None:
            parts = exchange.wait()


class _RingAttention(Function):
    """Attention of a rank's queries to the keys and values of all ranks."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, options: RingOptions) -> Tensor:
        wide = torch.promote_types(q.dtype, torch.float32)
        z = q.new_zeros(*q.shape[:3], v.shape[3], dtype=wide)
        highest, total = (q.new_zeros(*q.shape[:3], 1, dtype=wide) for _ in range(2))
        if sinks is None:
            highest.fill_(torch.finfo(wide).min)
        else:  # an extra key, whose value is 0
            highest.copy_(sinks[:, None, None])
            total.fill_(1.0)
        for owner, (k_, v_) in _turns([k, v], options):
            for tile in options.mask.tiles[owner]:
                s, _ = options.scores(q, k_, tile, owner)
                old, rows = highest[:, :, tile.queries], tile.queries
                new = torch.maximum(old, s.amax(-1, keepdim=True))
                p, shrink = (s - new).exp_(), (old - new).exp_()
                total[:, :, rows] = total[:, :, rows] * shrink + p.sum(-1, keepdim=True)
                sums = _group_heads(options.dropped(p, tile, owner).to(v.dtype), v.shape[1]) @ v_[:, :, tile.keys]
                z[:, :, rows] = z[:, :, rows] * shrink + sums.view(*p.shape[:3], -1)
                highest[:, :, rows] = new
        z = (z / total.clamp_min(torch.finfo(wide).tiny)).to(q.dtype)  # 0 for a query that may attend to no key
        logsumexp = torch.where(total > 0, highest + total.log(), torch.inf)
        ctx.options = options
        ctx.save_for_backward(q, k, v, z, logsumexp, sinks)
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, z, logsumexp, sinks = ctx.saved_tensors
        options = ctx.options
        delta = (grad.to(logsumexp.dtype) * z).sum(-1, keepdim=True)  # rowsum(P dP) over the keys of all ranks (Dao et al. 2022)
        grad_q = torch.zeros_like(q, dtype=logsumexp.dtype)
        exchange: _Exchange | None = None
        for owner, parts in _turns([k, v], options):
            grads = [torch.zeros_like(x, dtype=logsumexp.dtype) for x in parts]
            for tile in options.mask.tiles[owner]:
                _add_gradients(options, (q, *parts), tile, owner, (grad, delta, logsumexp), (grad_q, *grads))
            if exchange is not None:
                grads = [x.add_(y) for x, y in zip(grads, exchange.wait(), strict=True)]
            exchange = _Exchange(grads, len(options.mask.key_indices[owner - 1]), options.group, tag=2)
        assert exchange is not None, "a ring has at least one rank"
        grad_k, grad_v = exchange.wait()
        grad_sinks = None if sinks is None else -((sinks[:, None, None] - logsumexp).exp() * delta).sum((0, 2, 3)).to(sinks)
        return grad_q.to(q), grad_k.to(k), grad_v.to(v), grad_sinks, None


def _add_gradients(
    options: RingOptions, inputs: tuple[Tensor, ...], tile: Tile, owner: int, of_queries: tuple[Tensor, ...], grads: tuple[Tensor, ...]
) -> None:
    """Add a tile's contribution to the gradients of queries, keys and values.

    With P = exp(S - logsumexp), D the dropout mask and G the gradient of Z: dV = (P D)^T G, dS = P (D (G V^T) - delta),
    dQ = dS K / sqrt(d_k), dK = dS^T Q / sqrt(d_k).
    """
    q, k, v = inputs
    grad, delta, logsumexp = (x[:, :, tile.queries] for x in of_queries)
    s, slope = options.scores(q, k, tile, owner)
    p, scale, kv_heads = (s - logsumexp).exp_(), q.shape[3] ** -0.5, k.shape[1]
    q, k, v = q[:, :, tile.queries], k[:, :, tile.keys], v[:, :, tile.keys]
    g = _group_heads(grad, kv_heads)
    grads[2][:, :, tile.keys] += _group_heads(options.dropped(p, tile, owner).to(g.dtype), kv_heads).transpose(-2, -1) @ g
    grad_s = (options.dropped((g @ v.transpose(-2, -1)).view(p.shape), tile, owner) - delta).mul_(p)
    grad_s = _group_heads((grad_s if slope is None else grad_s * slope).to(q.dtype), kv_heads)
    grads[0][:, :, tile.queries] += (grad_s @ k).mul_(scale).view(q.shape)
    grads[1][:, :, tile.keys] += grad_s.transpose(-2, -1) @ _group_heads(q * scale, kv_heads)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def ring_attention(
    q: Float[Tensor, "batch n_heads query d_head"],
    k: Float[Tensor, "batch kv_heads key d_head"],
    v: Float[Tensor, "batch kv_heads key d_value"],
    sinks: Float[Tensor, "n_heads"] | None,
    options: RingOptions,
) -> Float[Tensor, "batch n_heads query d_value"]:
    """Compute attention of this rank's queries to the keys of all ranks, each of which passes its own chunk and calls this function.

    Equal to ``explicit_attention`` over all keys with the mask and the fixed bias of ``options.mask``.
    """
    with torch.autocast(q.device.type, enabled=False):
        if (balanced := options.mask.balanced) is None:
            z: Tensor = _RingAttention.apply(q, k, v, sinks, options)  # type: ignore[no-untyped-call]
            return z
        q, k, v = (_Redistribute.apply(x, balanced.there, options.group) for x in (q, k, v))  # type: ignore[no-untyped-call]
        z = _RingAttention.apply(q, k, v, sinks, options._replace(mask=balanced.mask))  # type: ignore[no-untyped-call]
        z = _Redistribute.apply(z, balanced.back, options.group)  # type: ignore[no-untyped-call]
        return z
