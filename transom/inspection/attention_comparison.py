"""Measure error, time and memory of exact, windowed and approximate attention on a trained model's queries, keys and values."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from transom.config.approximations import ApproximationConfig, LinearAttentionConfig, LinformerConfig, NystromConfig, PerformerConfig
from transom.config.architecture import TransformerConfig
from transom.errors import ConfigError
from transom.inspection.messages.tables import message
from transom.layers.approximations.approximate_attention import build_approximation
from transom.layers.approximations.approximation import Approximation
from transom.layers.approximations.linear_attention import Performer as PerformerLayer
from transom.layers.approximations.linformer import Linformer as LinformerLayer
from transom.layers.approximations.nystrom import segment_means
from transom.layers.attention import (
    Attention,
    AttentionArgs,
    attention_scores,
    attention_weights,
    block_sparse_attention,
    explicit_attention,
    scaled_dot_product_attention,
)
from transom.layers.block import Block
from transom.layers.context import AttentionContext, SegmentMask
from transom.layers.dispatch import selected_path
from transom.layers.masks.block_sparse_mask import build_block_sparse_mask
from transom.layers.masks.mask_rules import CAUSAL_IN_SEGMENT, SAME_SEGMENT, DistanceRule, TokenPositions
from transom.layers.observe import ActivationRecorder
from transom.models.base import Network
from transom.planning.process_state import environment_defaults

EXPLICIT_NAME = "exact, explicit"
MAX_EXPLICIT_TOKENS = 4096
"""Maximum number of keys for which explicit attention, with the full score matrix, is measured."""


class RecordedAttention(NamedTuple):
    """The inputs of one attention layer.

    Attributes:
        address: address of the layer.
        q: queries of one row without padding.
        k: keys.
        v: values.
        args: mask, position bias, softcap and other arguments of the layer.
        causal: whether the layer's attention is causal.
        is_self_attention: whether the layer is self-attention, not cross-attention.
    """

    address: str
    q: Float[Tensor, "1 n_heads query d_head"]
    k: Float[Tensor, "1 kv_heads key d_head"]
    v: Float[Tensor, "1 kv_heads key d_value"]
    args: AttentionArgs
    causal: bool
    is_self_attention: bool


class AttentionMethod(NamedTuple):
    """A method to compute the attention of one layer.

    Attributes:
        attend: computes the attention output.
        weights: computes the attention weights that the method implies; None for exact methods.
    """

    attend: Callable[[], Tensor]
    weights: Callable[[], Tensor] | None = None


class MethodCost(NamedTuple):
    """Error, time and memory of one method on one attention layer.

    Attributes:
        kind: name of the method.
        output_error: |Z' - Z| / |Z|, averaged over heads, where Z is the exact output and Z' that of the method.
        weights_error: the same for the attention weights; None if the weights were not compared.
        seconds: median time of one call.
        bytes: peak memory of one call, inputs not counted.
    """

    kind: str
    output_error: float | None
    weights_error: float | None
    seconds: float
    bytes: int


@torch.no_grad()
def record_attention_inputs(model: Network, batch: Any) -> list[RecordedAttention]:
    """Run a model on a batch of one row and record the inputs of each attention layer, except in mixture-of-depths blocks."""
    named = dict(model.named_modules())
    routed = {name for name, module in named.items() if isinstance(module, Block) and module.depth is not None}
    modules = {name: m for name, m in named.items() if isinstance(m, Attention) and name.rpartition(".")[0] not in routed}
    recorder = ActivationRecorder(f"{name}.{site}" for name in modules for site in ("q", "k", "v"))
    model.last_hidden_state(batch, recorder)
    found = []
    for name, module in modules.items():
        q, k, v = (recorder.activations[f"{name}.{site}"] for site in ("q", "k", "v"))
        args, is_self_attention = module.attention_args(model.attention_context(name, batch)), not name.endswith(".cross")
        found.append(RecordedAttention(name, q, k, v, args, is_self_attention and name.startswith("decoder."), is_self_attention))
    return found


def resize_inputs(inputs: RecordedAttention, length: int) -> RecordedAttention:
    """Repeat or cut the tokens in the inputs of a self-attention layer to ``length`` tokens.

    Position biases are dropped, since they are known for the original positions only.
    """
    positions = torch.arange(length, device=inputs.q.device)
    q, k, v = (x.index_select(2, positions % x.shape[2]) for x in (inputs.q, inputs.k, inputs.v))
    there = TokenPositions.single_sequence(length, q.device)
    mask = CAUSAL_IN_SEGMENT.dense(there, there) if inputs.causal else None
    return inputs._replace(q=q, k=k, v=v, args=inputs.args._replace(mask=mask, bias=None))


@torch.no_grad()
def build_methods(
    inputs: RecordedAttention, windows: Sequence[int], components: Mapping[str, ApproximationConfig], seed: int
) -> dict[str, AttentionMethod]:
    """Return the attention methods that apply to a layer, by name.

    Args:
        inputs: inputs of the layer.
        windows: sizes of sliding windows, for self-attention.
        components: approximations by name; those that cannot be causal are left out for a causal layer.
        seed: seed of random features (Performer).
    """
    q, k, v, args = inputs.q, inputs.k, inputs.v, inputs.args
    methods = {}
    if selected_path("attention", q, k, v, args) == "fused":
        methods["exact, fused"] = AttentionMethod(lambda: scaled_dot_product_attention(q, k, v, args))
    if k.shape[2] <= MAX_EXPLICIT_TOKENS:
        methods[EXPLICIT_NAME] = AttentionMethod(lambda: explicit_attention(q, k, v, args))
    for size in windows if inputs.is_self_attention else ():
        if size < k.shape[2]:
            methods[f"window {size}"] = _window_method(inputs, size)
    asking, asked = (torch.ones(1, x.shape[2], dtype=torch.long, device=q.device) for x in (q, k))
    segments = SegmentMask(asking, asked, inputs.causal)
    for name, config in components.items():
        landmarks_see_all_queries = isinstance(config, NystromConfig) and not inputs.is_self_attention
        if (config.CAUSAL or not inputs.causal) and not landmarks_see_all_queries:
            methods[name] = _approximation_method(inputs, _build_approximation_layer(config, q, k.shape[2], seed), segments)
    return methods


def _approximation_method(inputs: RecordedAttention, approximation: Approximation, segments: SegmentMask) -> AttentionMethod:
    q, k, v, positions = inputs.q, inputs.k, inputs.v, TokenPositions.single_sequence(inputs.q.shape[2], inputs.q.device)
    mask = CAUSAL_IN_SEGMENT.dense(positions, positions) if segments.causal else None
    return AttentionMethod(
        lambda: approximation(q, k, v, segments), lambda: approximation.implied_weights(q, k, AttentionContext(mask=mask))
    )


def _build_approximation_layer(config: ApproximationConfig, q: Tensor, n_keys: int, seed: int) -> Approximation:
    """Build an approximation with seeded random features; Linformer's projections are means over segments of tokens."""
    layer = build_approximation(config, q.shape[3], n_keys)
    if isinstance(layer, PerformerLayer):
        with torch.random.fork_rng([]):
            torch.manual_seed(seed)
            layer.sample_projections()
    if isinstance(layer, LinformerLayer):
        average_costs = segment_means(torch.ones(1, n_keys, dtype=torch.bool), layer.e.out_features, torch.float32)[0]
        for mixing in (layer.e, layer.f):
            mixing.weight.data = average_costs
    return layer.to(q.device)


def _window_method(inputs: RecordedAttention, size: int) -> AttentionMethod:
    """Return sliding-window attention; it is computed with a block-sparse mask if a model would use one for the same shapes."""
    q, k, v, positions = inputs.q, inputs.k, inputs.v, TokenPositions.single_sequence(inputs.q.shape[2], inputs.q.device)
    rule = (CAUSAL_IN_SEGMENT if inputs.causal else SAME_SEGMENT) & DistanceRule(1 - size, size - 1)
    near = rule.dense(positions, positions)
    args = inputs.args._replace(mask=near if inputs.args.mask is None else near & inputs.args.mask)
    tiles = build_block_sparse_mask(rule, positions, positions) if args.bias is None else None
    if tiles is None:
        return AttentionMethod(
            lambda: scaled_dot_product_attention(q, k, v, args), lambda: attention_weights(attention_scores(q, k, args), args)
        )
    plain = args._replace(mask=None)
    return AttentionMethod(
        lambda: block_sparse_attention(q, k, v, tiles, plain), lambda: attention_weights(attention_scores(q, k, args), args)
    )


@torch.no_grad()
def measure_costs(inputs: RecordedAttention, methods: Mapping[str, AttentionMethod], repeats: int, with_weights: bool) -> list[MethodCost]:
    """Measure error, time and memory of every method; timings are interleaved, so that changes in machine speed affect all methods alike.

    Args:
        inputs: inputs of the layer.
        methods: methods by name, from ``build_methods``.
        repeats: number of timings per method, after one warm-up call.
        with_weights: also compare the attention weights, which takes memory for all pairs of tokens.
    """
    exact = scaled_dot_product_attention(inputs.q, inputs.k, inputs.v, inputs.args)
    weights = attention_weights(attention_scores(inputs.q, inputs.k, inputs.args), inputs.args) if with_weights else None
    outputs = {name: method.attend() for name, method in methods.items()}
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(repeats):
        for name, method in methods.items():
            start = time.perf_counter()
            method.attend()
            if inputs.q.device.type != "cpu":
                torch.accelerator.synchronize(inputs.q.device)
            seconds[name].append(time.perf_counter() - start)
    return [
        MethodCost(
            name,
            relative_error(outputs[name], exact),
            None if weights is None or method.weights is None else relative_error(method.weights(), weights),
            statistics.median(seconds[name]),
            peak_bytes(method.attend, inputs.q.device),
        )
        for name, method in methods.items()
    ]


def relative_error(found: Float[Tensor, "1 n_heads query width"], exact: Float[Tensor, "1 n_heads query width"]) -> float:
    """Return |found - exact| / |exact| (Frobenius norms per head), averaged over heads."""
    difference, size = ((x.double() ** 2).sum((0, 2, 3)).sqrt() for x in (found.double() - exact.double(), exact))
    return float((difference / size.clamp(min=torch.finfo(torch.float64).tiny)).mean())


def peak_bytes(function: Callable[[], object], device: torch.device) -> int:
    """Call a function and return the peak of the memory that it allocates, in bytes, its result included."""
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        function()
        return torch.cuda.max_memory_allocated(device) - before
    quiet = environment_defaults({"KINETO_LOG_LEVEL": "99"})  # else it logs its start and stop to standard error
    with quiet, profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        function()
    results: Any = profiler.profiler.kineto_results
    allocations = sorted((event for event in results.events() if event.name() == "[memory]"), key=lambda event: event.start_ns())
    held = most = 0
    for allocation in allocations:
        held += allocation.nbytes()
        most = max(most, held)
    return most


def average_costs(per_layer: Sequence[Sequence[MethodCost]]) -> list[MethodCost]:
    """Average the costs of each method over the layers to which the method applies."""
    kinds = dict.fromkeys(cost.kind for measure_costs in per_layer for cost in measure_costs)
    found = []
    for kind in kinds:
        of_method = [cost for measure_costs in per_layer for cost in measure_costs if cost.kind == kind]
        errors = [
            [e for e in column if e is not None] for column in zip(*((c.output_error, c.weights_error) for c in of_method), strict=True)
        ]
        output, weights = (statistics.fmean(column) if column else None for column in errors)
        n_bytes = round(statistics.fmean(cost.bytes for cost in of_method))
        found.append(MethodCost(kind, output, weights, statistics.fmean(cost.seconds for cost in of_method), n_bytes))
    return found


def approximations_for(features: Sequence[int], ranks: Sequence[int], n_keys: int) -> dict[str, ApproximationConfig]:
    """Return the approximations to compare, by their name in the tables.

    Args:
        features: numbers of random features (Performer).
        ranks: ranks (Linformer) and numbers of landmarks (Nystrom); values of ``n_keys`` or more are skipped.
        n_keys: number of keys.
    """
    low = [rank for rank in ranks if rank < n_keys]
    return {
        "linear, elu": LinearAttentionConfig(),
        "linear, relu": LinearAttentionConfig(feature_map="relu"),
        **{f"performer, {m} features": PerformerConfig(n_features=m) for m in features},
        **{f"linformer, rank {rank}, means": LinformerConfig(rank=rank) for rank in low},
        **{f"nystrom, {rank} landmarks": NystromConfig(n_landmarks=rank) for rank in low},
    }


class ComparisonSettings(NamedTuple):
    """Settings of a comparison.

    Attributes:
        lengths: numbers of tokens to which the inputs of the first self-attention layer are repeated or cut.
        features: numbers of random features (Performer).
        ranks: ranks (Linformer) and numbers of landmarks (Nystrom).
        windows: sizes of sliding windows.
        repeats: number of timings per method.
        seed: seed of random features.
    """

    lengths: Sequence[int] = ()
    features: Sequence[int] = (16, 64, 256)
    ranks: Sequence[int] = (16, 64)
    windows: Sequence[int] = (16, 64)
    repeats: int = 5
    seed: int = 1


class AttentionComparison(NamedTuple):
    """The result of ``compare_attention_methods``.

    Attributes:
        tokens: number of keys per attention layer, by address.
        layers: costs of each method per attention layer, by address.
        lengths: costs of each method on the first self-attention layer, by number of tokens.
        notes: caveats, one sentence each.
    """

    tokens: dict[str, int]
    layers: dict[str, list[MethodCost]]
    lengths: dict[int, list[MethodCost]]
    notes: list[str]

    @property
    def averages(self) -> list[MethodCost]:
        """Costs of each method, averaged over the layers to which the method applies."""
        return average_costs(list(self.layers.values()))


def compare_attention_methods(
    model: Network, batch: Any, settings: ComparisonSettings, notify: Callable[[int, int], None] = lambda done, total: None
) -> AttentionComparison:
    """Run a model on one row, and measure all attention methods on the queries, keys and values of each of its layers.

    Args:
        model: a model in evaluation mode.
        batch: input of one row.
        settings: methods, lengths and repeats.
        notify: called after each measurement with the number of measurements done and their total.

    Raises:
        ConfigError: the model has no Transformer attention layer that all tokens pass.
    """
    all_inputs = record_attention_inputs(model, batch)
    if not all_inputs:
        found = f"model.kind = {model.config.kind!r}, which has no Transformer attention layer"
        if isinstance(model.config, TransformerConfig):
            found = f"model.depth = {model.config.depth.kind!r} in every block, which leaves no attention layer over all tokens"
        raise ConfigError(f"expected a run of a Transformer, found {found}")
    peak_bytes(lambda: None, all_inputs[0].q.device)  # the profiler's first use takes seconds
    first, layers, lengths = next(layer_inputs for layer_inputs in all_inputs if layer_inputs.is_self_attention), {}, {}
    for done, layer_inputs in enumerate(all_inputs, 1):
        layers[layer_inputs.address] = _measure_inputs(layer_inputs, settings, with_weights=True)
        notify(done, len(all_inputs) + len(settings.lengths))
    for done, length in enumerate(settings.lengths, len(all_inputs) + 1):
        lengths[length] = _measure_inputs(resize_inputs(first, length), settings, with_weights=False)
        notify(done, len(all_inputs) + len(settings.lengths))
    return AttentionComparison(
        {layer_inputs.address: layer_inputs.k.shape[2] for layer_inputs in all_inputs}, layers, lengths, _notes(model, all_inputs, settings)
    )


def _measure_inputs(layer_inputs: RecordedAttention, settings: ComparisonSettings, with_weights: bool) -> list[MethodCost]:
    components = approximations_for(settings.features, settings.ranks, layer_inputs.k.shape[2])
    return measure_costs(
        layer_inputs, build_methods(layer_inputs, settings.windows, components, settings.seed), settings.repeats, with_weights
    )


def _notes(model: Network, all_inputs: Sequence[RecordedAttention], settings: ComparisonSettings) -> list[str]:
    """Return the caveats of a comparison."""
    first, c = all_inputs[0], model.config
    assert isinstance(c, TransformerConfig)
    notes = [message("comparison.notes.not_retrained")]
    if any(layer_inputs.causal for layer_inputs in all_inputs):
        notes.append(message("comparison.notes.not_causal"))
    longest = max(layer_inputs.k.shape[2] for layer_inputs in all_inputs)
    if too_large := sorted({size for size in (*settings.windows, *settings.ranks) if size >= longest}):
        notes.append(message("comparison.notes.too_large", sizes=", ".join(map(str, too_large)), n=longest))
    features = {
        "position_bias": first.args.bias is not None,
        "softcap": first.args.softcap is not None,
        "score_function": first.args.score is not None,
        "sinks": first.args.sinks is not None,
        "sparsity_pattern": c.attention.pattern.kind != "full",
    }
    if found := [message(f"comparison.features.{name}") for name, there in features.items() if there]:
        notes.append(
            message("comparison.notes.ignored", features=reduce(lambda some, one: message("data.both", first=some, second=one), found))
        )
    if c.attention.approximation.kind != "none":
        notes.append(message("comparison.notes.approximation", kind=c.attention.approximation.kind))
    if c.depth.kind != "full":
        notes.append(message("comparison.notes.depths"))
    if settings.lengths:
        address = next(layer_inputs.address for layer_inputs in all_inputs if layer_inputs.is_self_attention)
        notes.append(message("comparison.notes.lengths", layer=address))
    return notes
