"""Compare the parameter counts of presets with the published ones."""

from dataclasses import dataclass
from typing import NamedTuple

from transom.config.model import DecoderConfig
from transom.config.presets import Preset
from transom.planning.parameters import ParameterCount, count_parameters


@dataclass(frozen=True)
class PresetCount:
    """The parameter count of a preset beside the published one.

    Attributes:
        preset: the preset.
        count: our count, by part.
        comparable: the part of our count that the published count includes.
        difference: comparable / published - 1; None if no count is published.
    """

    preset: Preset
    count: ParameterCount
    comparable: int
    difference: float | None


def compare_preset(preset: Preset) -> PresetCount:
    """Count the parameters of a preset with its published sizes, on the meta device."""
    count = count_parameters(preset.config())
    comparable = count.total - (count.embeddings if preset.counts == "without embeddings" else 0)
    return PresetCount(preset, count, comparable, None if preset.parameters is None else comparable / preset.parameters - 1)


class ParameterEstimates(NamedTuple):
    """Estimates of a decoder's parameters by common formulas, with n layers, d = d_model and V symbols.

    Attributes:
        blocks: 12 n d^2, for 4 d^2 weights of attention and 8 d^2 of a feed-forward network per layer.
        tied: 12 n d^2 + V d, with an embedding that is also the output projection.
        untied: 2 V d + n (12 d^2 + 2 d), with two matrices and one norm of 2 d parameters per layer.
    """

    blocks: int
    tied: int
    untied: int


def estimate_parameters(config: DecoderConfig) -> ParameterEstimates:
    """Estimate the parameters of a decoder from its width, depth and vocabulary alone."""
    assert config.vocab_size, "the vocabulary size comes from the tokenizer"
    n, d, table = config.n_layers, config.d_model, config.vocab_size * config.d_model
    blocks = 12 * n * d**2
    return ParameterEstimates(blocks, blocks + table, 2 * table + blocks + 2 * n * d)
