"""Checks of parts that do nothing over the validation data: heads, attention maps, neurons, experts, embeddings."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from transom.inspection.activations import Activations, attention_context
from transom.inspection.derive_attention import is_exact
from transom.inspection.doctor.checkup import MAX_LENGTH, Checkup, first_tokens, n_rows, select_rows, tensor_batch
from transom.inspection.doctor.finding import Finding, not_applicable
from transom.layers.attention import Attention
from transom.layers.feed_forward import FeedForward, GatedFeedForward
from transom.layers.mixture_of_experts import MixtureOfExperts, expert_load
from transom.layers.observe import ActivationRecorder
from transom.models.inputs import TensorBatch

MAX_TOKENS = 4096
"""Tokens over which activity is measured, of at most ``MAX_LENGTH`` per text."""

BATCH_ROWS = 16
"""Texts or images per pass."""

MIN_TOKENS = 64
"""Tokens without which no expert, neuron or head is called dead."""

DEAD, INACTIVE = 1e-3, 1e-3
"""A head is dead if its output is at most this fraction of the residual stream; a neuron if its value is at most this fraction of the root
mean square of the layer."""

UNIFORM, ONE_TOKEN = 0.01, 0.99
"""Attention is uniform if it differs from 1/n by less than this total variation on average, and fixed if one token gets this much of it."""


@dataclass
class Activity:
    """Sums and maxima over validation data, by the address of a layer.

    Attributes:
        n_tokens: number of tokens, or of images and their patches.
        heads: largest norm of the output of each head, as a fraction of the root mean square norm of the residual stream, (n_heads,).
        variation: total variation between the attention weights and uniform ones, summed over queries with several visible keys.
        one_token: attention weight of the most attended key of each text, summed over these queries, (n_heads,).
        n_queries: number of these queries.
        neurons: largest absolute value of each hidden unit or feature map.
        squares: sum of the squares of all of them, and their number.
        experts: number of tokens per expert.
    """

    n_tokens: int = 0
    heads: dict[str, Tensor] = field(default_factory=dict)
    variation: dict[str, Tensor] = field(default_factory=dict)
    one_token: dict[str, Tensor] = field(default_factory=dict)
    n_queries: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    neurons: dict[str, Tensor] = field(default_factory=dict)
    squares: dict[str, list[float]] = field(default_factory=lambda: defaultdict(lambda: [0.0, 0.0]))
    experts: dict[str, Tensor] = field(default_factory=dict)


@torch.no_grad()
def measure_activity(checkup: Checkup) -> Activity:
    """Run the model on validation data, and sum up what its parts do."""
    found, model = Activity(), checkup.model
    modules = dict(model.named_modules())
    for batch in _small_batches(checkup):
        recorder = ActivationRecorder(["*"])
        logits = model(batch, recorder)
        a = Activations(model, batch, recorder.activations | {"logits": logits})
        found.n_tokens += _n_tokens(a)
        for address, x in recorder.activations.items():
            path, _, name = address.rpartition(".")
            module = modules.get(path)
            if name == "z" and isinstance(module, Attention):
                _add_heads(found, a, path)
            elif (name == "hidden" and isinstance(module, FeedForward | GatedFeedForward)) or path.endswith("stem.stages"):
                _add_neurons(found, a, address, x)
            elif name == "router" and isinstance(module, MixtureOfExperts):
                mask = _mask(a, path, x[..., 0])
                load = expert_load(a[f"{path}.chosen"].flatten(0, -2), mask.flatten(), module.config.n_experts)
                found.experts[path] = found.experts.get(path, 0) + load
        if found.n_tokens >= MAX_TOKENS:
            break
    return found


def _small_batches(checkup: Checkup) -> Iterator[TensorBatch]:
    """Yield validation data as batches of a few short rows."""
    order = range(len(checkup.batches))
    for batch in (checkup.batches[i] for i in (*order[1::2], *order[::2])):  # texts of all lengths, where batches are sorted by length
        whole = tensor_batch(batch.to(checkup.model.device))
        for start in range(0, n_rows(whole), BATCH_ROWS):
            rows = range(start, min(start + BATCH_ROWS, n_rows(whole)))
            yield first_tokens(select_rows(whole, rows), MAX_LENGTH)


def _n_tokens(a: Activations) -> int:
    """Return the number of tokens of a batch, or of images."""
    texts = [text for text in (a.batch.source, a.batch.decoder_input) if text is not None]
    return sum(int((text.segments > 0).sum()) for text in texts) if texts else len(a.batch.pixels)


def _mask(a: Activations, path: str, like: Tensor) -> Tensor:
    """Return True at tokens, of the shape of ``like``, (batch, length); all True in blocks that process selected tokens only."""
    block = path.partition(".attn")[0].partition(".cross")[0].partition(".ff")[0]
    if ".blocks." in path:
        mask = a.model.token_masks(f"{block}.attn", a.batch)[-1]
        if mask.shape == like.shape:
            return mask
    return torch.ones_like(like, dtype=torch.bool)


def _add_heads(found: Activity, a: Activations, path: str) -> None:
    """Add the norms of the outputs of the heads of a layer, and how its weights are spread."""
    out = a[f"{path}.head_out"].norm(dim=-1)  # (batch, n_heads, query)
    mask = _mask(a, path, out[:, 0])
    stream = a[f"{path.rpartition('.')[0]}.resid_pre"].norm(dim=-1)
    scale = stream.square().mean().sqrt().clamp(min=torch.finfo(stream.dtype).tiny)
    norms = (out * mask[:, None]).amax((0, 2)) / scale
    found.heads[path] = norms if path not in found.heads else found.heads[path].maximum(norms)
    if not is_exact(a.module(path)):
        return
    weights = a[f"{path}.weights"]
    allowed = attention_context(a, path).mask
    visible = torch.ones_like(weights, dtype=torch.bool) if allowed is None else allowed.expand_as(weights)
    n_visible = visible.sum(-1, keepdim=True)
    chosen = (n_visible[:, 0, :, 0] > 1) & mask
    if not bool(chosen.any()):
        return
    uniform = visible / n_visible.clamp(min=1)
    variation = ((weights - uniform).abs().sum(-1) / 2 * chosen[:, None]).sum((0, 2))
    one_token = (weights * chosen[:, None, :, None]).sum(2).amax(-1).sum(0)
    found.variation[path] = found.variation.get(path, 0) + variation
    found.one_token[path] = found.one_token.get(path, 0) + one_token
    found.n_queries[path] += int(chosen.sum())


def _add_neurons(found: Activity, a: Activations, address: str, x: Tensor) -> None:
    """Add the largest absolute values of hidden units, (..., d_ff), or feature maps, (batch, maps, height, width)."""
    values = x.movedim(1, -1) if x.ndim == 4 and "stages" in address else x
    if values.ndim == 3:
        values = values[_mask(a, address, values[..., 0])]
    values = values.flatten(0, -2)
    if len(values):
        largest = values.abs().amax(0)
        found.neurons[address] = largest if address not in found.neurons else found.neurons[address].maximum(largest)
        found.squares[address][0] += float(values.double().square().sum())
        found.squares[address][1] += values.numel()


def _activity(checkup: Checkup) -> Activity:
    found: Activity = checkup.share("activity", measure_activity)
    return found


def _lack(checkup: Checkup, unit: str = "tokens") -> Finding | None:
    """Return why activity cannot be judged, if so."""
    if not checkup.batches:
        return not_applicable(checkup.no_data)
    n = _activity(checkup).n_tokens
    if n < MIN_TOKENS and next(iter(_small_batches(checkup))).pixels is None:
        return not_applicable(f"the validation data have {n:,} {unit}; {MIN_TOKENS} are needed")
    return None


def dead_heads(checkup: Checkup) -> Finding:
    """Find attention heads that add nothing to the residual stream."""
    if (lack := _lack(checkup)) is not None:
        return lack
    found = _activity(checkup)
    if not found.heads:
        return not_applicable("the model has no attention heads")
    return _share_finding(
        {path: norms <= DEAD for path, norms in found.heads.items()},
        f"attention heads add less than {DEAD:.1%} of the residual stream over {found.n_tokens:,} tokens",
        "such heads are free to remove: train with fewer n_heads, or look at their output projection",
        (0.0, 0.5),
    )


def attention(checkup: Checkup) -> Finding:
    """Find heads whose attention does not depend on the query: uniform, or on one token throughout."""
    if (lack := _lack(checkup)) is not None:
        return lack
    found = _activity(checkup)
    if not found.variation:
        return not_applicable("the model computes no attention maps")
    n = found.n_queries
    flat = {path: x / n[path] < UNIFORM for path, x in found.variation.items()}
    fixed = {path: x / n[path] > ONE_TOKEN for path, x in found.one_token.items()}
    n_flat, n_fixed = (sum(int(x.sum()) for x in each.values()) for each in (flat, fixed))
    return _share_finding(
        {path: flat[path] | fixed[path] for path in flat},
        f"heads attend the same way throughout: {n_flat} uniformly, {n_fixed} to one token of each text",
        "such heads choose nothing: transom ablate RUN TEXT shows whether the model needs them; train longer or with fewer heads",
        (0.25, 1.0),
    )


def neurons(checkup: Checkup) -> Finding:
    """Find hidden units of feed-forward networks, and feature maps, that are never active."""
    if (lack := _lack(checkup)) is not None:
        return lack
    found = _activity(checkup)
    if not found.neurons:
        return not_applicable("the model has no feed-forward network")
    rms = {address: (total / max(n, 1)) ** 0.5 for address, (total, n) in found.squares.items()}
    return _share_finding(
        {address: x <= INACTIVE * rms[address] for address, x in found.neurons.items()},
        f"neurons are never active over {found.n_tokens:,} tokens",
        "dead ReLU units get no gradient: lower training.learning_rate, warm up longer, use gelu or swiglu, or a smaller d_ff",
        (0.25, 0.9),
    )


def _share_finding(dead: Mapping[str, Tensor], what: str, advice: str, bounds: tuple[float, float]) -> Finding:
    """Return a finding on the share of parts that do nothing.

    Args:
        dead: True at parts that do nothing, by layer.
        what: end of the sentence, which begins with their number.
        advice: what to do.
        bounds: share of all parts from which on (above it) there is a warning; share of one layer above which there is a problem.
    """
    n, n_dead = sum(x.numel() for x in dead.values()), sum(int(x.sum()) for x in dead.values())
    worst = max(dead, key=lambda path: float(dead[path].float().mean()))
    of_worst = float(dead[worst].float().mean())
    share, (few, most) = n_dead / n, bounds
    message = f"{n_dead:,} of {n:,} {what}" + (f" (most in {worst}: {of_worst:.0%})" if n_dead else "")
    if of_worst > most or (most == 1.0 and share == 1.0):
        return Finding("problem", message, advice, share, few)
    return Finding("warning", message, advice, share, few) if share > few else Finding("ok", message, "", share, few)


def experts(checkup: Checkup) -> Finding:
    """Find experts that no token chooses, and measure how uneven the load is."""
    if not any(isinstance(module, MixtureOfExperts) for module in checkup.model.modules()):
        return not_applicable("the model has no mixture of experts")
    if (lack := _lack(checkup)) is not None:
        return lack
    loads = _activity(checkup).experts
    idle = {path: load == 0 for path, load in loads.items()}
    uneven = {path: float(load.max() / load.float().mean()) for path, load in loads.items()}
    worst = max(uneven, key=lambda path: uneven[path])
    n, n_idle = sum(x.numel() for x in idle.values()), sum(int(x.sum()) for x in idle.values())
    message = (
        f"{n_idle} of {n} experts get no token; the largest load is {uneven[worst]:.1f} times the mean ({worst}, bound {MAX_LOAD:.0f})"
    )
    advice = 'set feed_forward.load_balancing to "aux-loss" or "bias", or use fewer experts'
    if any(float(x.float().mean()) > 0.5 for x in idle.values()):
        return Finding("problem", message, advice, uneven[worst], MAX_LOAD)
    bad = n_idle > 0 or uneven[worst] > MAX_LOAD
    return Finding("warning" if bad else "ok", message, advice if bad else "", uneven[worst], MAX_LOAD)


MAX_LOAD = 4.0
"""Load of an expert as a multiple of the mean load, above which there is a warning."""


def embeddings(checkup: Checkup) -> Finding:
    """Find embedding rows that are 0, equal or almost parallel, and tokens that the training data do not have."""
    tables = {
        name: module.weight.detach()
        for name, module in checkup.model.named_modules()
        if isinstance(module, torch.nn.Embedding) and name.endswith("tokens")
    }
    if not tables:
        return not_applicable("the model reads no tokens")
    collapsed, empty = dict[str, float](), 0
    for name, table in tables.items():
        rows = table.float()
        collapsed[name] = float(torch.nn.functional.normalize(rows, dim=-1).mean(0).norm())
        empty += int((rows.norm(dim=-1) == 0).sum()) + len(rows) - len(rows.unique(dim=0))
    worst = max(collapsed, key=lambda name: collapsed[name])
    unused = _unused_tokens(checkup)
    message = (
        f"{empty:,} embedding rows are 0 or equal to others; the mean unit vector has length {collapsed[worst]:.2f} (bound {MAX_MEAN})"
    )
    message += "" if unused is None else f"; {unused[0]:,} of {unused[1]:,} tokens {unused[2]}"
    if collapsed[worst] > MAX_MEAN:
        return Finding(
            "problem", message, f"the vectors of {worst} have collapsed: lower training.learning_rate", collapsed[worst], MAX_MEAN
        )
    if empty > 1:
        return Finding("warning", message, "equal rows stand for the same token: check the tokenizer and the initial weights", empty, 1)
    if unused is not None and unused[0] > MAX_UNUSED * unused[1]:
        return Finding(
            "warning", message, "untrained rows cost memory and time: lower tokenizer.vocab_size", unused[0], MAX_UNUSED * unused[1]
        )
    return Finding("ok", message, "", collapsed[worst], MAX_MEAN)


MAX_UNUSED = 0.5
"""Fraction of tokens without training data above which there is a warning; bytes and parts of longer tokens are always among them."""

MAX_MEAN = 0.95
"""Length of the mean of all unit embedding vectors: 0 for vectors in all directions, 1 for equal ones."""


def _unused_tokens(checkup: Checkup) -> tuple[int, int, str] | None:
    """Return how many tokens the training data do not have, the number of all, and where they were counted; None without these data."""
    known: Any = checkup.training_tokens
    if known is None or not known.is_whole_epoch:
        return None
    counts = list(known.counts.values())
    return sum(int((x[4:] == 0).sum()) for x in counts), sum(len(x) - 4 for x in counts), "are not in the training data"
