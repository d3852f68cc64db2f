"""Pictures of attention heads forming during training: lines of their scores over steps."""

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from transom.errors import ConfigError
from transom.inspection.example_batch import build_example_batch
from transom.inspection.lenses.head_formation import ENTROPY, HeadFormation, head_formation
from transom.inspection.lenses.head_roles import THRESHOLDS
from transom.inspection.plots.picture import CATEGORIES, Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

N_LABELED = 3
"""Heads of a panel that are labeled: those with the largest scores at the end, or the lowest entropy."""

TITLE = "Heads forming during training (block.head; dotted: score from which a head has the role)"

TITLES = {
    "previous-token": "previous token: weight of the token before",
    "positional": "positional: variance explained by position",
    "induction": "induction: weight of what followed last time",
    "duplicate-token": "duplicate token: weight of the same token before",
    "delimiter": "delimiter: weight of special tokens, punctuation",
    "copying": "copying: raises the tokens that it attends to",
    ENTROPY: "entropy as a share of its maximum: 1 is uniform",
}
"""Titles of the panels."""


def formation(model: Any, inputs: Any) -> Picture:
    """Draw scores of the roles of every head, and the entropy of its attention, over the steps of training; one panel per score.

    Args:
        model: pairs of a number of steps and the run or model that had been trained for so long; ``transom plot formation`` reads those
            of a run's checkpoints.
        inputs: a batch or tensor, or a list of them; or a text, whose target side, in a translator, is the translation by the last model.

    Raises:
        ConfigError: there are fewer than two steps, or the model has no attention.
    """
    if isinstance(model, Mapping) or not isinstance(model, Iterable):
        raise ConfigError(f"model: expected pairs of a step and a model for formation, found {type(model).__name__}; give a list of pairs")
    pairs = model
    if isinstance(inputs, str):
        pairs = list(pairs)
        inputs = build_example_batch(pairs[-1][1], inputs, None, "refuse").batch
    found = head_formation(pairs, inputs if isinstance(inputs, list) else [inputs])
    if len(found.steps) < 2:
        raise ConfigError(f"expected models of two steps or more, found {len(found.steps)}; keep more checkpoints during training")
    rows = [
        (step, *found.heads[h], name, score)
        for name, scores in found.scores.items()
        for step, of_step in zip(found.steps, scores.tolist(), strict=True)
        for h, score in enumerate(of_step)
        if not math.isnan(score)
    ]
    n_rows = -(-len(found.scores) // 2)

    def draw(figure: "Figure") -> None:
        panels = figure.subplots(n_rows, 2, squeeze=False).flatten()
        for axes, (name, scores) in zip(panels, found.scores.items(), strict=False):
            _draw_panel(axes, name, scores, found)
        for axes in panels[len(found.scores) :]:
            axes.set_axis_off()

    first, last = found.steps[0], found.steps[-1]
    alt = f"Scores of {len(found.heads)} heads at {len(found.steps)} steps of training, from {first:,} to {last:,}."
    for name, scores in found.scores.items():
        (best, *_) = best_heads(name, scores)
        which = "Lowest" if name == ENTROPY else "Highest"
        alt += f" {which} {name} at the end: {head_name(*found.heads[best])}, {scores[0, best]:.2f} before and {scores[-1, best]:.2f} now."
    return Picture(TITLE, alt, ("step", "layer", "head", "score", "value"), rows, draw, (9.6, 2.5 * n_rows + 0.5))


def best_heads(name: str, scores: Tensor) -> list[int]:
    """Return the heads with the largest scores at the last step, or the lowest entropy, best first; heads without a score are left out."""
    at_end = scores[-1].tolist()
    known = [h for h, score in enumerate(at_end) if not math.isnan(score)]
    return sorted(known, key=lambda h: at_end[h] if name == ENTROPY else -at_end[h])[:N_LABELED]


def head_name(address: str, head: int) -> str:
    """Return a short name of a head.

    >>> head_name("decoder.blocks.2.attn", 3), head_name("decoder.blocks.0.cross", 1), head_name("decoder.cross", 0)
    ('decoder 2.3', 'cross 0.1', 'cross 0')
    """
    stack, _, block = address.removesuffix(".attn").removesuffix(".cross").partition(".blocks.")
    return f"{'cross' if address.endswith('.cross') else stack} {f'{block}.{head}' if block else head}"


def _draw_panel(axes: "Axes", name: str, scores: Tensor, found: HeadFormation) -> None:
    """Draw the lines of all heads for one score; the best are colored and labeled at their right ends."""
    best = best_heads(name, scores)
    for h in range(scores.shape[1]):
        if h not in best:
            axes.plot(found.steps, scores[:, h].tolist(), color="#BBBBBB", linewidth=0.7, zorder=1)
    low = min(0.0, float(scores.nan_to_num(nan=0.0).min()))
    if name in THRESHOLDS:
        axes.axhline(THRESHOLDS[name], color="#555555", linewidth=0.7, linestyle=":", zorder=0)
    axes.set_ylim(low - 0.03, 1.03)
    span, ends = found.steps[-1] - found.steps[0], list[float]()
    for rank, h in enumerate(best):
        axes.plot(found.steps, scores[:, h].tolist(), color=CATEGORIES[rank], linewidth=1.8, marker="o", markersize=3, zorder=3 - rank / 10)
        ends.append(float(scores[-1, h]))
    for rank, y in enumerate(_apart(ends, 0.1 * (1.06 - low), low)):
        text = f" {head_name(*found.heads[best[rank]])}"
        axes.text(found.steps[-1] + 0.02 * span, y, text, color=CATEGORIES[rank], va="center", fontsize=8)
    axes.set_xlim(found.steps[0] - 0.02 * span, found.steps[-1] + 0.3 * span)
    axes.set_xticks(found.steps if len(found.steps) <= 6 else found.steps[:: -(-len(found.steps) // 6)])
    axes.set_title(TITLES[name], fontsize=9, loc="left")
    axes.set_xlabel("step")


def _apart(heights: list[float], gap: float, floor: float) -> list[float]:
    """Move labels apart, so that two are at least ``gap`` from each other, in the order of their heights, and none is below ``floor``.

    >>> _apart([0.9, 0.85, 0.1], 0.1, 0.0), _apart([0.02, 0.03], 0.1, 0.0)
    ([0.9, 0.8, 0.1], [0.0, 0.1])
    """
    order = sorted(range(len(heights)), key=lambda i: -heights[i])
    found, above, below = list(heights), math.inf, floor
    for i in order:
        found[i] = above = min(heights[i], above - gap)
    for i in reversed(order):
        found[i] = max(found[i], below)
        below = found[i] + gap
    return [round(height, 6) for height in found]
