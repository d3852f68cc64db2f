"""Compare the parameter counts of presets with the published ones."""

from typing import NamedTuple

from transom.config.presets import Preset
from transom.planning.parameters import ParameterCount, count_parameters


class PresetCount(NamedTuple):
    """The parameter count of a preset beside the published one.

    Attributes:
        count: our count, by part.
        comparable: the part of our count that the published count includes.
        difference: comparable / published - 1; None if no count is published.
    """

    count: ParameterCount
    comparable: int
    difference: float | None


def compare_preset(preset: Preset) -> PresetCount:
    """Count the parameters of a preset with its published sizes, on the meta device."""
    count = count_parameters(preset.config())
    comparable = count.total - (count.embeddings if preset.counts == "without embeddings" else 0)
    return PresetCount(count, comparable, None if preset.parameters is None else comparable / preset.parameters - 1)
