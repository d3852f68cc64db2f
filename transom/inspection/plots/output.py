"""Pictures of the output: probabilities of the next token or class at several temperatures."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from transom.errors import ConfigError
from transom.inspection.pages.markup import shorten
from transom.inspection.plots.picture import CATEGORIES, MAX_LABEL, Picture
from transom.inspection.trace import trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEMPERATURES = (0.5, 1.0, 2.0)


def probabilities(model: Any, inputs: Any, position: int = -1, temperatures: Sequence[float] = TEMPERATURES, top: int = 12) -> Picture:
    """Draw bars of the most probable tokens after one position, or of the classes, at several temperatures: softmax(Z / tau).

    Args:
        model: a run or model.
        inputs: its input.
        position: position whose next token is predicted; -1 for the last. Classifiers have none.
        temperatures: temperatures tau, above 0.
        top: number of tokens.
    """
    logits, found = trace(model, inputs, ["logits"])
    row = logits[0].double().cpu()
    if row.dim() == 2:
        if not -len(row) <= position < len(row):
            raise ConfigError(f"position: expected a position from 0 to {len(row) - 1}, found {position}; give another")
        row = row[position]
    if min(temperatures, default=0.0) <= 0:
        raise ConfigError(f"temperatures: expected numbers above 0, found {', '.join(f'{t:g}' for t in temperatures)}")
    names = output_names(model, len(row))
    best = row.topk(min(top, len(row))).indices.tolist()
    rows = [(tau, names[i], i, float(p)) for tau in temperatures for i, p in zip(best, (row / tau).softmax(-1)[best].tolist(), strict=True)]

    def draw(figure: "Figure") -> None:
        axes = figure.subplots()
        width = 0.8 / len(temperatures)
        for n, tau in enumerate(temperatures):
            heights = [p for t, _, _, p in rows if t == tau]
            at = [i + (n - (len(temperatures) - 1) / 2) * width for i in range(len(best))]
            axes.bar(at, heights, width, label=f"temperature {tau:g}", color=CATEGORIES[n % len(CATEGORIES)])
        axes.set_xticks(range(len(best)), [shorten(names[i], MAX_LABEL) for i in best], rotation=60, ha="right")
        axes.set_ylabel("probability")
        axes.legend(frameon=False)

    first = max(rows, key=lambda each: each[3])
    at_one = (row).softmax(-1)
    after = found.tokens.get("target") or found.tokens.get("source") or []
    context = f" after {' '.join(after[: (position % len(after)) + 1][-8:])}" if after and logits.dim() == 3 else ""
    alt = (
        f"The {len(best)} most probable outputs{context}. The first is {names[best[0]]!r} with probability {float(at_one[best[0]]):.3f} at"
        f" temperature 1; the largest bar is {first[3]:.3f} at temperature {first[0]:g}."
    )
    return Picture(f"Probabilities{context}", alt, ("temperature", "output", "index", "probability"), rows, draw, (7.2, 4.2))


def output_names(model: Any, n: int) -> list[str]:
    """Return the names of the outputs: classes, tokens, or numbers where neither is known."""
    classes = getattr(getattr(model, "model", model).config, "classes", None)
    tokenizers = getattr(model, "tokenizers", None)
    tokenizer = tokenizers.target if tokenizers else getattr(model, "tokenizer", None)
    if classes and len(classes) == n:
        return list(classes)
    return tokenizer.symbols(list(range(n))) if tokenizer is not None else [str(i) for i in range(n)]
