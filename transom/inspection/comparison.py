"""Error, time and memory of attention methods on a trained model's own queries, keys and values."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from transom.config.approximations import ApproximationBrick, Linear, Linformer, Nystrom, Performer
from transom.config.architecture import Transformer
from transom.errors import ConfigError
from transom.layers.approximations.approximate import build_approximation
from transom.layers.approximations.approximation import Approximation
from transom.layers.approximations.linear_attention import Performer as PerformerLayer
from transom.layers.approximations.linformer import Linformer as LinformerLayer
from transom.layers.approximations.nystrom import runs
from transom.layers.attention import Attention, Terms, attend, attend_explicit, attend_visible, pattern, scores
from transom.layers.block import Block
from transom.layers.context import AttentionContext, SegmentMask
from transom.layers.dispatch import path_of
from transom.layers.masks.rule import LOOKING_BACK, SAME_SEGMENT, Distance, Places
from transom.layers.masks.visible_tiles import visible_tiles
from transom.layers.observe import ActivationRecorder
from transom.models.network import Network
from transom.planning.process import environment_with

EXPLICIT = "exact, explicit"
LONGEST_EXPLICIT = 4096
"""Maximum number of tokens for which the full score matrix is computed."""


class Tapped(NamedTuple):
    """The inputs of one attention layer.

    Attributes:
        address: address of the layer.
        q: queries of one row without padding.
        k: keys.
        v: values.
        terms: mask, bias and other arguments of the model's own attention.
        causal: whether the attention is causal.
        own: whether it is self-attention.
    """

    address: str
    q: Float[Tensor, "1 n_heads query d_head"]
    k: Float[Tensor, "1 kv_heads key d_head"]
    v: Float[Tensor, "1 kv_heads key d_value"]
    terms: Terms
    causal: bool
    own: bool


class System(NamedTuple):
    """An attention method.

    Attributes:
        gather: computes the attention output.
        weights: computes the implied attention weights; None if they equal the reference's.
    """

    gather: Callable[[], Tensor]
    weights: Callable[[], Tensor] | None = None


class Cost(NamedTuple):
    """Error, time and memory of one method on one attention layer.

    Attributes:
        kind: name of the method.
        output_error: |Z' - Z| / |Z|, averaged over heads, where Z is the exact output; None for the reference.
        weights_error: the same for the attention weights; None where they were not compared.
        seconds: median time of a forward pass.
        bytes: peak memory in addition to the inputs.
    """

    kind: str
    output_error: float | None
    weights_error: float | None
    seconds: float
    bytes: int


@torch.no_grad()
def tapped(model: Network, batch: Any) -> list[Tapped]:
    """Run a model on a batch of one row and record the inputs of each attention layer, except in mixture-of-depths blocks."""
    named = dict(model.named_modules())
    routed = {name for name, module in named.items() if isinstance(module, Block) and module.depth is not None}
    modules = {name: m for name, m in named.items() if isinstance(m, Attention) and name.rpartition(".")[0] not in routed}
    recorder = ActivationRecorder(f"{name}.{site}" for name in modules for site in ("q", "k", "v"))
    model.hidden(batch, recorder)
    found = []
    for name, module in modules.items():
        q, k, v = (recorder.activations[f"{name}.{site}"] for site in ("q", "k", "v"))
        terms, own = module.terms(model.attention_context(name, batch)), not name.endswith(".cross")
        found.append(Tapped(name, q, k, v, terms, own and name.startswith("decoder."), own))
    return found


def stretched(of: Tapped, length: int) -> Tapped:
    """Repeat or cut the tokens of a self-attention layer to a length; position biases are dropped, since they are undefined there."""
    places = torch.arange(length, device=of.q.device)
    q, k, v = (x.index_select(2, places % x.shape[2]) for x in (of.q, of.k, of.v))
    there = Places.of_text(length, q.device)
    mask = LOOKING_BACK.matrix(there, there) if of.causal else None
    return of._replace(q=q, k=k, v=v, terms=of.terms._replace(mask=mask, bias=None))


@torch.no_grad()
def systems(of: Tapped, windows: Sequence[int], bricks: Mapping[str, ApproximationBrick], seed: int) -> dict[str, System]:
    """Return the applicable attention methods by name.

    Args:
        of: inputs of the layer.
        windows: sizes of sliding windows.
        bricks: approximations by name.
        seed: seed of random features.
    """
    q, k, v, terms = of.q, of.k, of.v, of.terms
    ways = {}
    if path_of("attention", q, k, v, terms) == "fused":
        ways["exact, fused"] = System(lambda: attend(q, k, v, terms))
    if k.shape[2] <= LONGEST_EXPLICIT:
        ways[EXPLICIT] = System(lambda: attend_explicit(q, k, v, terms))
    for size in windows if of.own else ():
        if size < k.shape[2]:
            ways[f"window {size}"] = _window(of, size)
    asking, asked = (torch.ones(1, x.shape[2], dtype=torch.long, device=q.device) for x in (q, k))
    segments = SegmentMask(asking, asked, of.causal)
    for name, brick in bricks.items():
        landmarks_see_all_queries = isinstance(brick, Nystrom) and not of.own
        if (brick.LOOKS_BACK or not of.causal) and not landmarks_see_all_queries:
            ways[name] = _approximate(of, _prepared(brick, q, k.shape[2], seed), segments)
    return ways


def _approximate(of: Tapped, approximation: Approximation, segments: SegmentMask) -> System:
    q, k, v, places = of.q, of.k, of.v, Places.of_text(of.q.shape[2], of.q.device)
    mask = LOOKING_BACK.matrix(places, places) if segments.causal else None
    return System(lambda: approximation(q, k, v, segments), lambda: approximation.implied_weights(q, k, AttentionContext(mask=mask)))


def _prepared(brick: ApproximationBrick, q: Tensor, n_keys: int, seed: int) -> Approximation:
    """Build an approximation with seeded random features; learned projections (Linformer) are replaced by means over runs of tokens."""
    layer = build_approximation(brick, q.shape[3], n_keys)
    if isinstance(layer, PerformerLayer):
        with torch.random.fork_rng([]):
            torch.manual_seed(seed)
            layer.draw()
    if isinstance(layer, LinformerLayer):
        means = runs(torch.ones(1, n_keys, dtype=torch.bool), layer.e.out_features, torch.float32)[0]
        for mixing in (layer.e, layer.f):
            mixing.weight.data = means
    return layer.to(q.device)


def _window(of: Tapped, size: int) -> System:
    """Return sliding-window attention, block-sparse where the model would use that."""
    q, k, v, places = of.q, of.k, of.v, Places.of_text(of.q.shape[2], of.q.device)
    rule = (LOOKING_BACK if of.causal else SAME_SEGMENT) & Distance(1 - size, size - 1)
    near = rule.matrix(places, places)
    terms = of.terms._replace(mask=near if of.terms.mask is None else near & of.terms.mask)
    tiles = visible_tiles(rule, places, places) if terms.bias is None else None
    if tiles is None:
        return System(lambda: attend(q, k, v, terms), lambda: pattern(scores(q, k, terms), terms))
    plain = terms._replace(mask=None)
    return System(lambda: attend_visible(q, k, v, tiles, plain), lambda: pattern(scores(q, k, terms), terms))


@torch.no_grad()
def costs(of: Tapped, ways: Mapping[str, System], rounds: int, with_weights: bool) -> list[Cost]:
    """Measure error, time and memory of every method; timings are interleaved, so that changes in machine speed affect all methods.

    Args:
        of: inputs of the layer.
        ways: methods by name, from ``systems``.
        rounds: number of timings per method, after one warm-up call.
        with_weights: also compare the attention weights, which takes memory for all pairs of tokens.
    """
    exact = attend(of.q, of.k, of.v, of.terms)
    weights = pattern(scores(of.q, of.k, of.terms), of.terms) if with_weights else None
    outputs = {name: way.gather() for name, way in ways.items()}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            start = time.perf_counter()
            way.gather()
            if of.q.device.type != "cpu":
                torch.accelerator.synchronize(of.q.device)
            seconds[name].append(time.perf_counter() - start)
    return [
        Cost(
            name,
            relative_error(outputs[name], exact),
            None if weights is None or way.weights is None else relative_error(way.weights(), weights),
            statistics.median(seconds[name]),
            peak_bytes(way.gather, of.q.device),
        )
        for name, way in ways.items()
    ]


def relative_error(found: Float[Tensor, "1 n_heads query width"], exact: Float[Tensor, "1 n_heads query width"]) -> float:
    """Return |found - exact| / |exact| (Frobenius norms per head), averaged over heads."""
    difference, size = ((x.double() ** 2).sum((0, 2, 3)).sqrt() for x in (found.double() - exact.double(), exact))
    return float((difference / size.clamp(min=torch.finfo(torch.float64).tiny)).mean())


def peak_bytes(work: Callable[[], object], device: torch.device) -> int:
    """Measure the peak memory of a function in bytes, its result included, from all of its allocations."""
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        work()
        return torch.cuda.max_memory_allocated(device) - before
    quiet = environment_with({"KINETO_LOG_LEVEL": "99"})  # else it logs its start and stop to standard error
    with quiet, profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        work()
    results: Any = watched.profiler.kineto_results
    moves = sorted((event for event in results.events() if event.name() == "[memory]"), key=lambda event: event.start_ns())
    held = most = 0
    for move in moves:
        held += move.nbytes()
        most = max(most, held)
    return most


def means(of_places: Sequence[Sequence[Cost]]) -> list[Cost]:
    """Average the costs of each method over the layers it applies to."""
    kinds = dict.fromkeys(cost.kind for costs in of_places for cost in costs)
    found = []
    for kind in kinds:
        of_kind = [cost for costs in of_places for cost in costs if cost.kind == kind]
        errors = [
            [e for e in column if e is not None] for column in zip(*((c.output_error, c.weights_error) for c in of_kind), strict=True)
        ]
        output, weights = (statistics.fmean(column) if column else None for column in errors)
        n_bytes = round(statistics.fmean(cost.bytes for cost in of_kind))
        found.append(Cost(kind, output, weights, statistics.fmean(cost.seconds for cost in of_kind), n_bytes))
    return found


def bricks_for(features: Sequence[int], ranks: Sequence[int], n_keys: int) -> dict[str, ApproximationBrick]:
    """Return the approximations to compare by name.

    Args:
        features: numbers of random features (Performer).
        ranks: ranks (Linformer) and numbers of landmarks (Nystrom); those not below ``n_keys`` are skipped.
        n_keys: number of keys.
    """
    low = [rank for rank in ranks if rank < n_keys]
    return {
        "linear, elu": Linear(),
        "linear, relu": Linear(feature_map="relu"),
        **{f"performer, {m} features": Performer(n_features=m) for m in features},
        **{f"linformer, rank {rank}, means": Linformer(rank=rank) for rank in low},
        **{f"nystrom, {rank} landmarks": Nystrom(n_landmarks=rank) for rank in low},
    }


class Settings(NamedTuple):
    """Settings of a comparison.

    Attributes:
        lengths: numbers of tokens to which the input of the first self-attention is repeated or cut.
        features: numbers of random features (Performer).
        ranks: ranks (Linformer) and numbers of landmarks (Nystrom).
        windows: sizes of sliding windows.
        rounds: number of timings per method.
        seed: seed of random features.
    """

    lengths: Sequence[int] = ()
    features: Sequence[int] = (16, 64, 256)
    ranks: Sequence[int] = (16, 64)
    windows: Sequence[int] = (16, 64)
    rounds: int = 5
    seed: int = 1


class Comparison(NamedTuple):
    """The measurements.

    Attributes:
        tokens: number of keys per attention layer, by address.
        layers: costs of each method per layer.
        lengths: costs of each method per length.
        notes: caveats.
    """

    tokens: dict[str, int]
    layers: dict[str, list[Cost]]
    lengths: dict[int, list[Cost]]
    notes: list[str]

    @property
    def kinds(self) -> list[Cost]:
        """Costs of each method averaged over layers."""
        return means(list(self.layers.values()))


def compare(model: Network, batch: Any, settings: Settings, tell: Callable[[int, int], None] = lambda done, total: None) -> Comparison:
    """Compute attention from a model's queries, keys and values with every applicable method.

    Args:
        model: a model in evaluation mode.
        batch: input of one row.
        settings: methods, lengths and repeats.
        tell: called with (done, total).

    Raises:
        ConfigError: the model has no Transformer attention layer that all tokens pass.
    """
    places = tapped(model, batch)
    if not places:
        found = f"model.kind = {model.config.kind!r}, which has no such attention layer"
        if isinstance(model.config, Transformer):
            found = f"model.depth = {model.config.depth.kind!r} in every block, which leaves no attention layer over all tokens"
        raise ConfigError(f"expected a Transformer's run, found {found}")
    peak_bytes(lambda: None, places[0].q.device)  # the profiler's first use takes seconds
    first, layers, lengths = next(place for place in places if place.own), {}, {}
    for done, place in enumerate(places, 1):
        layers[place.address] = _costs_at(place, settings, with_weights=True)
        tell(done, len(places) + len(settings.lengths))
    for done, length in enumerate(settings.lengths, len(places) + 1):
        lengths[length] = _costs_at(stretched(first, length), settings, with_weights=False)
        tell(done, len(places) + len(settings.lengths))
    return Comparison({place.address: place.k.shape[2] for place in places}, layers, lengths, _notes(model, places, settings))


def _costs_at(place: Tapped, settings: Settings, with_weights: bool) -> list[Cost]:
    bricks = bricks_for(settings.features, settings.ranks, place.k.shape[2])
    return costs(place, systems(place, settings.windows, bricks, settings.seed), settings.rounds, with_weights)


def _notes(model: Network, places: Sequence[Tapped], settings: Settings) -> list[str]:
    """Return the caveats of a comparison."""
    first, c = places[0], model.config
    assert isinstance(c, Transformer)
    notes = ["nothing is retrained; Linformer's learned projections E and F are replaced by means over runs of tokens"]
    if any(place.causal for place in places):
        notes.append("Linformer and Nystrom are not causal; they are skipped in causal attention layers")
    longest = max(place.k.shape[2] for place in places)
    if too_large := sorted({size for size in (*settings.windows, *settings.ranks) if size >= longest}):
        notes.append(f"windows and ranks of {', '.join(map(str, too_large))} are skipped, since the text has only {longest:,} tokens")
    own = {"a position bias": first.terms.bias is not None, "softcap": first.terms.softcap is not None}
    own |= {
        "another score function": first.terms.score is not None,
        "sinks": first.terms.sinks is not None,
        "a sparsity pattern": c.attention.pattern.kind != "full",
    }
    if found := [name for name, there in own.items() if there]:
        notes.append(f"the model's own attention has {' and '.join(found)}, which the approximations ignore")
    if c.attention.approximation.kind != "none":
        notes.append(f"the model was trained with approximation = {c.attention.approximation.kind!r}, not with exact attention")
    if c.depth.kind != "full":
        notes.append("mixture-of-depths blocks are skipped")
    if settings.lengths:
        address = next(place.address for place in places if place.own)
        notes.append(f"other lengths are measured on {address}, with the text's tokens repeated or cut")
    return notes
