"""What approximations of attention would make of a model's own queries, keys and values: error, time and memory of each kind."""

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

EXPLICIT = "exact, written out"
LONGEST_EXPLICIT = 4096
"""Tokens behind which scores of all pairs are not written out."""


class Tapped(NamedTuple):
    """What entered an attention of a model.

    Attributes:
        address: of the attention.
        q: queries, of one row without padding.
        k: keys.
        v: values.
        terms: mask, bias and all else that the model's own attention has.
        causal: whether tokens see only what came before.
        own: whether tokens look at their own sequence.
    """

    address: str
    q: Float[Tensor, "1 n_heads query d_head"]
    k: Float[Tensor, "1 kv_heads key d_head"]
    v: Float[Tensor, "1 kv_heads key d_value"]
    terms: Terms
    causal: bool
    own: bool


class System(NamedTuple):
    """A way to attend.

    Attributes:
        gather: gives what each query gathers.
        weights: gives the weights that it implies; None where they are those of the reference.
    """

    gather: Callable[[], Tensor]
    weights: Callable[[], Tensor] | None = None


class Cost(NamedTuple):
    """What a kind of attention costs in one place.

    Attributes:
        kind: its name.
        output_error: |Z' - Z| / |Z|, Z what exact attention gathers, the mean over heads; None for the reference.
        weights_error: the same of the weights; None where they were not compared.
        seconds: of one pass forward, the median.
        bytes: most memory that was held beside what it is given.
    """

    kind: str
    output_error: float | None
    weights_error: float | None
    seconds: float
    bytes: int


@torch.no_grad()
def tapped(model: Network, batch: Any) -> list[Tapped]:
    """Run a model on a batch of one row and read what entered each of its attentions, but for blocks that only chosen tokens pass."""
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
    """Repeat the tokens of a self-attention up to a length, or cut them; a bias of positions is left out, since none is known there."""
    places = torch.arange(length, device=of.q.device)
    q, k, v = (x.index_select(2, places % x.shape[2]) for x in (of.q, of.k, of.v))
    there = Places.of_text(length, q.device)
    mask = LOOKING_BACK.matrix(there, there) if of.causal else None
    return of._replace(q=q, k=k, v=v, terms=of.terms._replace(mask=mask, bias=None))


@torch.no_grad()
def systems(of: Tapped, windows: Sequence[int], bricks: Mapping[str, ApproximationBrick], seed: int) -> dict[str, System]:
    """Name every way to attend that fits a place.

    Args:
        of: what enters it.
        windows: sizes of sliding windows.
        bricks: approximations by their names.
        seed: of random features.
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
        if (brick.LOOKS_BACK or not of.causal) and (of.own or not isinstance(brick, Nystrom)):  # whose landmarks would see all queries
            ways[name] = _approximate(of, _prepared(brick, q, k.shape[2], seed), segments)
    return ways


def _approximate(of: Tapped, approximation: Approximation, segments: SegmentMask) -> System:
    q, k, v, places = of.q, of.k, of.v, Places.of_text(of.q.shape[2], of.q.device)
    mask = LOOKING_BACK.matrix(places, places) if segments.causal else None
    return System(lambda: approximation(q, k, v, segments), lambda: approximation.implied_weights(q, k, AttentionContext(mask=mask)))


def _prepared(brick: ApproximationBrick, q: Tensor, n_keys: int, seed: int) -> Approximation:
    """Build an approximation: random features of a seed, and what would have to be learned a mean over runs of tokens."""
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
    """Attend in a sliding window, by tiles where that pays as in the model."""
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
    """Measure every way to attend, timed in turn so that a change in the machine's speed meets all of them.

    Args:
        of: what enters them.
        ways: by name, of ``systems``.
        rounds: how often each is timed, after once to warm up.
        with_weights: compare the weights too, a number a pair of tokens.
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
    """Return |found - exact| / |exact| of each head's matrix, the mean over heads."""
    difference, size = ((x.double() ** 2).sum((0, 2, 3)).sqrt() for x in (found.double() - exact.double(), exact))
    return float((difference / size.clamp(min=torch.finfo(torch.float64).tiny)).mean())


def peak_bytes(work: Callable[[], object], device: torch.device) -> int:
    """Measure the most memory that a piece of work holds at once, its result included: every allocation is counted, none is guessed."""
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        work()
        return torch.cuda.max_memory_allocated(device) - before
    quiet = environment_with({"KINETO_LOG_LEVEL": "99"})  # it would write of its start and stop on standard error
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
    """Average over places what each kind costs there; a kind counts where it fits."""
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
    """Name the approximations to compare.

    Args:
        features: numbers of random features.
        ranks: ranks of Linformer and landmarks of Nystrom; those of as many as there are tokens are left out.
        n_keys: tokens.
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
    """What is compared, and how.

    Attributes:
        lengths: tokens to which the first self-attention's text is repeated or cut.
        features: numbers of random features.
        ranks: ranks of Linformer and landmarks of Nystrom.
        windows: sizes of sliding windows.
        rounds: how often each is timed.
        seed: of random features.
    """

    lengths: Sequence[int] = ()
    features: Sequence[int] = (16, 64, 256)
    ranks: Sequence[int] = (16, 64)
    windows: Sequence[int] = (16, 64)
    rounds: int = 5
    seed: int = 1


class Comparison(NamedTuple):
    """What was measured.

    Attributes:
        tokens: keys of each attention, by its address.
        layers: what each kind costs there.
        lengths: what each kind costs at other lengths.
        notes: what one has to know beside it.
    """

    tokens: dict[str, int]
    layers: dict[str, list[Cost]]
    lengths: dict[int, list[Cost]]
    notes: list[str]

    @property
    def kinds(self) -> list[Cost]:
        """What each kind costs on average."""
        return means(list(self.layers.values()))


def compare(model: Network, batch: Any, settings: Settings, tell: Callable[[int, int], None] = lambda done, total: None) -> Comparison:
    """Put a model's queries, keys and values through every kind of attention that fits.

    Args:
        model: ready to answer.
        batch: what it reads: one row.
        settings: what is compared.
        tell: is told how many places are done.

    Raises:
        ConfigError: there is no attention of a Transformer in the model, or none that all tokens have.
    """
    places = tapped(model, batch)
    if not places:
        found = f"model.kind = {model.config.kind!r}, which has no such attention"
        if isinstance(model.config, Transformer):
            found = f"model.depth = {model.config.depth.kind!r} in every block, which has no attention of all tokens"
        raise ConfigError(f"expected a Transformer's run, found {found}")
    peak_bytes(lambda: None, places[0].q.device)  # the first time takes seconds
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
    """Say what the figures do not."""
    first, c = places[0], model.config
    assert isinstance(c, Transformer)
    notes = ["nothing is trained anew; Linformer's E and F, which would be, are means over runs of tokens"]
    if any(place.causal for place in places):
        notes.append("Linformer and Nystrom would let a token see what comes after it: they are left out where that must not be")
    longest = max(place.k.shape[2] for place in places)
    if too_large := sorted({size for size in (*settings.windows, *settings.ranks) if size >= longest}):
        notes.append(f"windows and ranks of {', '.join(map(str, too_large))} are left out where the text has only {longest:,} tokens")
    own = {"a bias of positions": first.terms.bias is not None, "bounded scores": first.terms.softcap is not None}
    own |= {
        "another score": first.terms.score is not None,
        "sinks": first.terms.sinks is not None,
        "a pattern": c.attention.pattern.kind != "full",
    }
    if found := [name for name, there in own.items() if there]:
        notes.append(f"the model's own attention has {' and '.join(found)}, which approximations leave out")
    if c.attention.approximation.kind != "none":
        notes.append(f"the model learned with approximation = {c.attention.approximation.kind!r}: exact attention is new to it")
    if c.depth.kind != "full":
        notes.append("blocks that only chosen tokens pass are left out")
    if settings.lengths:
        notes.append(f"at other lengths: {next(place.address for place in places if place.own)}, its text's tokens repeated or cut")
    return notes
