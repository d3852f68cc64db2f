"""Presets: published architectures with their source, their published counts, and what transom's configuration lacks of them."""

import re
from typing import Any, Literal

from pydantic import Field

from transom.config.architecture import ModelConfig
from transom.config.packaged import packaged_preset, packaged_presets
from transom.config.recipe import parse_model_config
from transom.config.schema import Schema


class MissingComponent(Schema):
    """A component of a published model that its preset lacks."""

    component: str
    parameters: int = Field(description="parameters of the component; 0 if it has none")


class Preset(Schema):
    """A published architecture; the files are in ``transom/presets/``.

    A count that is not published is None. ``config`` returns the model with its published sizes; a recipe with ``preset = NAME`` takes
    ``model`` only, and its sizes from its own tokenizer and data.
    """

    name: str
    source: str = Field(description="article with authors and year")
    section: str = Field(description="table, row or section of the source, and the sources of fields that it does not give")
    model: dict[str, Any] = Field(description="fields of [model]")
    sizes: dict[str, int] = Field(
        description="published values of fields that recipes take from tokenizer or data; for images, the number of classes"
    )
    parameters: int | None = Field(None, ge=1, description="published number of parameters, as it is printed")
    counts: Literal["all", "without embeddings"] = Field("all", description="the parameters that the published number includes")
    active_parameters: int | None = Field(None, ge=1, description="published number of parameters that one token uses")
    released: int | None = Field(None, ge=1, description="number of parameters of the released weights")
    training_tokens: int | None = Field(None, ge=1, description="published number of training tokens")
    training: dict[str, Any] = Field({}, description="fields of [training] in which a row of a table differs")
    missing: tuple[MissingComponent, ...] = Field((), strict=False, description="components of the published model that the preset lacks")
    why: str = Field("", description="reason why our count differs or a component is missing")

    @property
    def summary(self) -> str:
        """One line: the published count, authors and year, and the place in the source."""
        dated = re.match(r".*? \d{4}(?=,)", self.source)
        counted = f"{format_count(self.parameters)} parameters; " if self.parameters else ""
        return f"{counted}{dated[0] if dated else self.source}, {self.section.partition(';')[0]}"

    @property
    def fields(self) -> dict[str, Any]:
        """Fields of [model] with the published sizes; classes have numbers as names."""
        return self.model | {name: list(map(str, range(n))) if name == "classes" else n for name, n in self.sizes.items()}

    def config(self) -> ModelConfig:
        """Return the complete configuration, with the published sizes."""
        return parse_model_config(self.fields)


def load_preset(name: str) -> Preset:
    """Return a packaged preset.

    Raises:
        ConfigError: there is no preset of this name.
    """
    return Preset.model_validate({"name": name, **packaged_preset(name)})


def load_presets() -> dict[str, Preset]:
    """Return all packaged presets by name, families together."""
    return {name: Preset.model_validate({"name": name, **tables}) for name, tables in packaged_presets().items()}


def format_count(number: int | None) -> str:
    """Format a published number with the digits that the source prints; empty for None.

    >>> format_count(540_350_000_000), format_count(125_000_000), format_count(1_400_000_000_000), format_count(None)
    ('540.35 billion', '125 million', '1.4 trillion', '')
    """
    if number is None:
        return ""
    for unit, name in ((10**12, "trillion"), (10**9, "billion"), (10**6, "million")):
        if number >= unit:
            return f"{number / unit:.10g} {name}"
    return str(number)
