"""The attention weights of one head, computed tile by tile: the map of a long text does not fit into memory."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from transom.decoding.inference import eval_mode
from transom.errors import ConfigError
from transom.inspection.activations import Activations, autocast_as, autocast_dtype, find_network, heads_of, parent
from transom.inspection.certify import Certificate, certify
from transom.inspection.derive_attention import AttentionInputs, is_exact
from transom.layers.attention import Attention
from transom.layers.context import Part
from transom.layers.observe import ActivationRecorder
from transom.models.base import Network

MAX_ELEMENTS = 2**20
"""Scores that are computed at a time for the logsumexp of all queries."""


class AttentionMap:
    """Attention weights of one head of one text.

    Attributes:
        shape: numbers of queries and keys.
    """

    def __init__(self, a: Activations, attention: str, head: int, text: int = 0) -> None:
        """Prepare the map of a layer; nothing is computed yet.

        Args:
            a: activations with ``q``, ``k``, ``v`` and ``z`` of the layer.
            attention: address of the layer, such as ``decoder.blocks.0.attn``.
            head: index of the query head.
            text: index of the text in the batch.

        Raises:
            ConfigError: the layer computes no scaled dot products, or the head or text does not exist.
        """
        module = _layer_with_head(a.model, attention, head)
        self._a, self._attention, self._head, self._text = a, attention, head, text
        q, k = (a.of_heads(f"{attention}.{name}", module.n_heads, [head]) for name in "qk")
        if not 0 <= text < len(q):
            raise ConfigError(f"text: expected a number from 0 to {len(q) - 1}, found {text}")
        self.shape = q.shape[2], k.shape[2]

    @cached_property
    def logsumexp(self) -> Float[Tensor, "query"]:
        """Logarithm of the sum of exp(score) over the keys of each query, in float32 or wider; computed once, in one pass over the map."""
        n, n_keys = self.shape
        rows = max(MAX_ELEMENTS // n_keys, 1)
        with self._a.as_in_pass():
            found = self._inputs(slice(0, 1)).logsumexp().new_empty(n)  # parts kept in a list would fragment the memory between them
            for i in range(0, n, rows):
                found[i : i + rows] = self._inputs(slice(i, i + rows)).logsumexp()[0, 0]
        return found

    def tile(self, queries: slice = slice(None), keys: slice = slice(None)) -> Float[Tensor, "query key"]:
        """Compute exp(S_ij - logsumexp_i) for some queries and keys; 0 for a query that attends to nothing."""
        lse = self.logsumexp[queries]
        with self._a.as_in_pass():
            s = self._inputs(queries, keys).masked_scores()[0, 0]
        return (s.to(lse) - lse.masked_fill(lse == -torch.inf, 0.0)[:, None]).exp()

    def rows(self, queries: Sequence[int]) -> Float[Tensor, "query key"]:
        """Compute the weights of some queries on all keys."""
        with self._a.as_in_pass():
            return self._inputs(list(queries)).weights()[0, 0]

    def certify(self, queries: Sequence[int] | None = None) -> Certificate:
        """Compare the maps of this head, of all texts, with the head outputs that the kernel computed, a block of queries at a time.

        Args:
            queries: positions of the queries; None for all.
        """
        return certify(self._a, self._attention, [self._head], queries)

    def _inputs(self, queries: slice | list[int], keys: slice = slice(None)) -> AttentionInputs:
        return AttentionInputs.of(self._a, self._attention, [self._head], Part(queries, keys), self._text)


def _layer_with_head(network: Network, attention: str, head: int) -> Attention:
    """Return an attention layer by its address.

    Raises:
        ConfigError: the layer computes no scaled dot products, or has no such head.
    """
    module = dict(network.named_modules(remove_duplicate=False)).get(attention)
    if not is_exact(module):
        raise ConfigError(f"{attention}: expected a layer of scaled dot-product attention, found {type(module).__name__}")
    assert isinstance(module, Attention)
    if not 0 <= head < module.n_heads:
        raise ConfigError(f"head: expected a number from 0 to {module.n_heads - 1}, found {head}")
    return module


def select_head(a: Activations, attention: str, head: int) -> Activations:
    """Return the activations of one head of an attention layer, copied once instead of at each tile of its map.

    Args:
        a: activations with ``q``, ``k``, ``v`` and ``z`` of the layer.
        attention: address of the layer.
        head: index of the query head.
    """
    n_heads, names = _layer_with_head(a.model, attention, head).n_heads, [f"{attention}.{name}" for name in "qkvz"]
    a.require_unchanged_weights()
    routed = {address: x for address, x in a.recorded.items() if address == f"{parent(attention)}.depth.score"}
    found = Activations(a.model, a.batch, {name: a.of_heads(name, n_heads, [head]) for name in names} | routed)
    found.autocast, found.head = a.autocast, head
    return found


class _HeadRecorder(ActivationRecorder):
    """A recorder that keeps one head of an attention layer: its queries, keys, values and output."""

    def __init__(self, network: Network, attention: str, head: int) -> None:
        super().__init__([f"{attention}.{name}" for name in "qkvz"])
        self.head, self.n_heads = head, _layer_with_head(network, attention, head).n_heads

    def keep(self, address: str, x: Tensor) -> Tensor:
        return heads_of(x, self.n_heads, [self.head])


def attention_map(model: Any, inputs: Any, attention: str, head: int, text: int = 0) -> AttentionMap:
    """Run a model and return the map of one head, of which alone queries, keys, values and outputs are kept.

    Args:
        model: a run loaded by ``transom.load``, or a model.
        inputs: a batch or tensor of tokens.
        attention: address of the layer, such as ``decoder.blocks.0.attn``; not in a block with a depth router.
        head: index of the query head.
        text: index of the text in the batch.
    """
    _, network = find_network(model, inputs)
    batch = network.as_batch(inputs)
    paths = [path for path, module in network.named_modules() if is_exact(module)]
    if attention not in paths:
        raise ConfigError(f"expected the address of an attention layer, found {attention!r}; choose one of {', '.join(paths[:4])}, ...")
    recorder = _HeadRecorder(network, attention, head)
    with torch.no_grad(), eval_mode(network), autocast_as(network, autocast_dtype(network)):
        network.last_hidden_state(batch, recorder)
    a = Activations(network, batch, recorder.activations)
    a.head = head
    return AttentionMap(a, attention, head, text)
