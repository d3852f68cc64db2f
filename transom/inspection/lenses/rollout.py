"""Attention rollout and attention flow: how much of each input token reaches each output (Abnar and Zuidema 2020).

Both read the attention of a stack as a graph whose nodes are the tokens before and after each attention layer. A node mixes the nodes below
it with weights W = (A + I) / 2, where A is the attention, averaged over heads, and I the residual stream; rows are divided by their sum.
Rollout multiplies the weights along each path and adds the paths. Flow takes the weights as capacities. Feed-forward networks and norms mix
no tokens. Values and W_O are left out: a large share says that much attention reaches a token, not that the token matters.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Self

import torch
from jaxtyping import Float
from torch import Tensor

from transom.config.architecture import TransformerConfig
from transom.config.vision import VisionTransformerConfig
from transom.decoding.inference import ProgressCallback, ignore_progress
from transom.errors import ConfigError
from transom.inspection.activations import Activations, find_network
from transom.inspection.lenses.max_flow import FlowNetwork
from transom.inspection.trace import trace
from transom.inspection.whole_maps import non_negative_map

Stack = Literal["encoder", "decoder"]

SCALE = 2**40
"""Units of capacity of a weight of 1: flows are computed in whole numbers."""

MAX_FLOW_EDGES = 10**8
"""Largest number of queries times inputs times edges of a graph for which flows are computed, about a minute on one core."""


class InputShares(NamedTuple):
    """Shares of the input tokens in each token after the last attention layer of a stack, in float64.

    Rows of rollout sum to 1, over source and target together. Rows of padding have no meaning.

    Attributes:
        source: shares of the source tokens or image patches, (batch, query, source); None for a language model.
        target: shares of the target tokens, or of the text of a language model, (batch, query, target); None for an encoder.
        tokens: symbols of the first row per side, "source" and "target"; empty without a tokenizer.
        queries: index of the token of each row of ``source`` and ``target``.
    """

    source: Float[Tensor, "batch query source"] | None
    target: Float[Tensor, "batch query target"] | None
    tokens: dict[str, list[str]]
    queries: list[int]


class AttentionGraph:
    """Layers of nodes, one node per token, from the inputs up.

    Attributes:
        below: for each layer, the layers below it and the weights of their nodes, (batch, nodes, nodes below); empty for inputs.
        inputs: layer of the tokens of each side, "source" and "target".
        sizes: number of nodes of each layer.
        tokens: symbols of the tokens per side.
    """

    def __init__(self, tokens: dict[str, list[str]]) -> None:
        self.below, self.sizes, self.inputs, self.tokens = list[dict[int, Tensor]](), list[int](), dict[str, int](), tokens

    def add_input(self, side: str, n: int) -> int:
        """Add a layer of ``n`` input tokens; return its index."""
        self.inputs[side] = len(self.below)
        self.below.append({})
        self.sizes.append(n)
        return len(self.below) - 1

    def mix(self, residual: int, attended: dict[int, Tensor]) -> int:
        """Add a layer above ``residual`` whose tokens also attend to layers; rows of all weights together sum to 1. Return its index."""
        some = next(iter(attended.values()))
        residual_weights = torch.eye(self.sizes[residual], dtype=some.dtype).expand(len(some), -1, -1)
        weights = {**attended, residual: residual_weights + attended.get(residual, 0.0)}
        total = torch.stack([each.sum(-1, keepdim=True) for each in weights.values()]).sum(0)
        self.below.append({layer: each / total for layer, each in weights.items()})
        self.sizes.append(self.sizes[residual])
        return len(self.below) - 1

    @classmethod
    def of(cls, model: Any, inputs: Any, stack: Stack | None = None) -> Self:
        """Trace a model, certify its attention weights, and build the graph of one stack; a decoder's contains the encoder's.

        Raises:
            ConfigError: the model has no such stack of self-attention, or negative weights.
            CertificationError: weights do not give the head outputs of the pass.
        """
        _, network = find_network(model, inputs)
        stacks: list[Stack] = [each for each in ("encoder", "decoder") if hasattr(getattr(network, each, None), "blocks")]
        if not isinstance(network.config, TransformerConfig) or not stacks:
            raise ConfigError(f"expected a model with blocks of self-attention, found one of kind {network.config.kind!r}; use another run")
        if stack is not None and stack not in stacks:
            raise ConfigError(f"stack: expected {' or '.join(stacks)}, found {stack}")
        top = stack or stacks[-1]
        used = [each for each in stacks if each == top or top == "decoder"]
        _, traced = trace(model, inputs, [f"{each}.blocks.*.weights" for each in used])
        for certificate in traced.certify():
            certificate.check()
        return cls.of_activations(traced.activations, used, traced.tokens)

    @classmethod
    def of_activations(cls, a: Activations, stacks: Sequence[Stack], tokens: dict[str, list[str]] | None = None) -> Self:
        """Build the graph of some stacks, the encoder first, from activations from which the weights of all their blocks follow.

        Raises:
            ConfigError: an approximation of attention implies negative weights.
        """
        graph, memory = cls(tokens or {}), None
        for each in stacks:
            memory = graph._add_stack(a, each, len(a.module(each).blocks), memory)
        return graph

    def _add_stack(self, a: Activations, stack: str, n_blocks: int, memory: int | None) -> int:
        """Add the layers of a stack that may attend to a memory; return the index of the last."""
        first = _mean_weights(a, f"{stack}.blocks.0.attn")
        layer = self.add_input("source" if stack == "encoder" else "target", first.shape[1])
        for i in range(n_blocks):
            path = f"{stack}.blocks.{i}"
            own = _mean_weights(a, f"{path}.attn")
            if memory is None:
                layer = self.mix(layer, {layer: own})
                continue
            cross = _mean_weights(a, f"{path}.cross")
            if a.module(path).parallel:  # it adds both outputs to the same stream
                layer = self.mix(layer, {layer: own, memory: cross})
            else:
                layer = self.mix(self.mix(layer, {layer: own}), {memory: cross})
        return layer

    def paths(self) -> dict[str, Tensor]:
        """Return the sum over paths of the product of weights, from each token of the last layer to each input token."""
        found = list[dict[str, Tensor]]()
        for layer, below in enumerate(self.below):
            sums = dict[str, Tensor]()
            for side, index in self.inputs.items():
                if index == layer:
                    sums[side] = torch.eye(self.sizes[layer], dtype=torch.float64)
                for lower, weights in below.items():
                    if side in found[lower]:
                        sums[side] = sums.get(side, 0.0) + weights @ found[lower][side]
            found.append(sums)
        return found[-1]

    def rollout(self) -> InputShares:
        """Return the shares of the inputs in the tokens of the last layer: ``paths``, by side."""
        paths = self.paths()
        return InputShares(paths.get("source"), paths.get("target"), self.tokens, list(range(self.sizes[-1])))

    def flow_network(self, row: int) -> tuple[FlowNetwork, list[int]]:
        """Return the graph of a row of the batch with capacities in units of 1 / ``SCALE``, and the first node of each layer."""
        starts = torch.tensor([0, *self.sizes]).cumsum(0).tolist()
        edges = list[tuple[int, int, int]]()
        for layer, below in enumerate(self.below):
            for lower, weights in below.items():
                capacities = (weights[row] * SCALE).round().long()
                upper, under = capacities.nonzero(as_tuple=True)
                sizes = capacities[upper, under].tolist()
                edges += zip((upper + starts[layer]).tolist(), (under + starts[lower]).tolist(), sizes, strict=True)
        return FlowNetwork(starts[-1], edges), starts


def _mean_weights(a: Activations, path: str) -> Float[Tensor, "batch query key"]:
    """Return the attention weights of a layer, averaged over heads, in float64; 0 for tokens that skip the block: they stay as they are.

    Raises:
        ConfigError: an approximation of attention implies negative weights.
    """
    return non_negative_map(a, path).mean(1)


def attention_rollout(model: Any, inputs: Any, stack: Stack | None = None) -> InputShares:
    """Multiply the attention of all layers: R = W_L ... W_2 W_1, with W = (A + I) / 2 (Abnar and Zuidema 2020, eq. 1).

    In a translator's decoder, a token mixes itself and the encoder's output with W = (C + I) / 2 after each cross-attention C. The paths
    lead through the encoder to the source tokens, or stay in the decoder and end at the target tokens before.

    Args:
        model: a run loaded by ``transom.load``, or a model.
        inputs: a text, or a batch or tensor, as for ``transom.trace``.
        stack: stack whose outputs are explained; None for the last.

    Raises:
        ConfigError: the model has no such stack of self-attention, or an approximation of attention implies negative weights.
        CertificationError: weights do not give the head outputs of the pass.
    """
    return AttentionGraph.of(model, inputs, stack).rollout()


def attention_flow(
    model: Any,
    inputs: Any,
    stack: Stack | None = None,
    positions: Sequence[int] | None = None,
    notify: ProgressCallback = ignore_progress,
) -> InputShares:
    """Compute the maximum flow from each output token down to each input token, with the weights as capacities.

    Each flow is computed on its own (Abnar and Zuidema 2020, section 3). It is at most 1, and those of a row do not sum to 1.

    Args:
        model: a run loaded by ``transom.load``, or a model.
        inputs: a text, or a batch or tensor, as for ``transom.trace``.
        stack: stack whose outputs are explained; None for the last.
        positions: indices of the output tokens; None for all.
        notify: progress callback, called with the number of output tokens done and of all.

    Raises:
        ConfigError: as for ``attention_rollout``, or a position does not exist, or the graph is too large.
        CertificationError: weights do not give the head outputs of the pass.
    """
    graph = AttentionGraph.of(model, inputs, stack)
    n, queries = graph.sizes[-1], list(range(graph.sizes[-1]) if positions is None else positions)
    if wrong := [position for position in queries if not 0 <= position < n]:
        raise ConfigError(f"positions: expected indices from 0 to {n - 1}, found {wrong[0]}")
    n_rows = max(len(weights) for below in graph.below for weights in below.values())
    n_edges = sum(weights[0].numel() for below in graph.below for weights in below.values())
    n_inputs = sum(graph.sizes[layer] for layer in graph.inputs.values())
    if (work := n_rows * len(queries) * n_inputs * n_edges) > MAX_FLOW_EDGES:
        raise ConfigError(
            f"attention flow: expected at most {MAX_FLOW_EDGES:,} output tokens times input tokens times edges, found {work:,}; give fewer"
            " positions or a shorter input, or use rollout"
        )
    flows = {side: torch.zeros(n_rows, len(queries), graph.sizes[layer], dtype=torch.float64) for side, layer in graph.inputs.items()}
    for row in range(n_rows):
        network, starts = graph.flow_network(row)
        for i, query in enumerate(queries):
            for side, layer in graph.inputs.items():
                found = [network.max_flow(starts[-2] + query, starts[layer] + j) for j in range(graph.sizes[layer])]
                flows[side][row, i] = torch.tensor(found, dtype=torch.float64) / SCALE
            notify(row * len(queries) + i + 1, n_rows * len(queries))
    return InputShares(flows.get("source"), flows.get("target"), graph.tokens, queries)


def patch_shares(config: VisionTransformerConfig, shares: InputShares) -> Float[Tensor, "batch rows columns"]:
    """Return the share of each patch of an image in the vector that the model classifies: the class token, or the mean of all patches.

    Args:
        config: configuration of the Vision Transformer.
        shares: result of ``attention_rollout`` or ``attention_flow`` for images, for all positions or for the class token.
    """
    assert shares.source is not None, "an image is the source"
    of_patches = shares.source[:, shares.queries.index(0), config.n_class_tokens :] if config.pooling == "cls" else shares.source.mean(1)
    return of_patches.unflatten(-1, (config.grid, config.grid))
