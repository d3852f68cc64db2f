"""The kinds of pictures by name."""

from collections.abc import Callable
from inspect import signature
from typing import Any, NamedTuple

from transom.config.suggestions import suggest
from transom.errors import ConfigError
from transom.inspection.plots import architecture, attention, depth, embeddings, formation, lenses, output
from transom.inspection.plots.picture import Picture


class Kind(NamedTuple):
    """A kind of picture.

    Attributes:
        draw: function of a model, of its input if ``has_input``, and of options; returns the picture.
    """

    draw: Callable[..., Picture]

    @property
    def has_input(self) -> bool:
        """Whether the picture shows a pass over a text or picture."""
        return "inputs" in signature(self.draw).parameters

    @property
    def options(self) -> list[str]:
        """Names of the options."""
        return [name for name in signature(self.draw).parameters if name not in ("model", "inputs")]


KINDS = {
    "heads": Kind(attention.heads),
    "head": Kind(attention.head),
    "alignment": Kind(attention.alignment),
    "probabilities": Kind(output.probabilities),
    "lens": Kind(lenses.lens),
    "rollout": Kind(lenses.rollout),
    "similarity": Kind(lenses.similarity),
    "formation": Kind(formation.formation),
    "norms": Kind(depth.norms),
    "experts": Kind(depth.experts),
    "positions": Kind(embeddings.positions),
    "embeddings": Kind(embeddings.embeddings),
    "architecture": Kind(architecture.architecture),
}


def plot(kind: str, model: Any, inputs: Any = None, **options: Any) -> Picture:
    """Draw a picture of a model, or of its pass over an input: ``transom.plot("heads", run, "a text").save("heads.svg")``.

    Args:
        kind: a name of ``KINDS``.
        model: a run loaded by ``transom.load``, or a model; for "formation" pairs of a number of steps and a model.
        inputs: a text (for a loaded run), or a batch or tensor; None for kinds that show no pass.
        **options: options of this kind, such as ``block`` and ``head``.

    Returns:
        The picture, with ``save(path)``, ``svg()``, ``png()``, ``html()``, ``csv()``, text alternative ``alt`` and numbers ``rows``.

    Raises:
        ConfigError: there is no such kind or option, the input is missing, or the model has nothing of this kind.
    """
    if kind not in KINDS:
        raise ConfigError(f"kind: expected a kind of picture, found {kind!r}; {suggest(kind, list(KINDS))}")
    chosen = KINDS[kind]
    for name in options:
        if name not in chosen.options:
            raise ConfigError(f"{name}: expected an option of {kind}, found another; {suggest(name, chosen.options)}")
    if chosen.has_input and inputs is None:
        raise ConfigError(f"inputs: expected a text or batch for {kind}, found none; give one")
    return chosen.draw(model, inputs, **options) if chosen.has_input else chosen.draw(model, **options)
