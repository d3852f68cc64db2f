"""Options of a call override settings, None is ignored, and unknown options raise an error."""

import pytest

from transom.config.decoding import BeamSearchConfig
from transom.decoding.inference import merge_options
from transom.decoding.predictors import generator, translate_options
from transom.errors import ConfigError

KNOWN = ("beam_size", "length_penalty", "batch_tokens")


def test_options_take_the_place_of_settings() -> None:
    recipe = BeamSearchConfig(beam_size=3, length_penalty=0.7)
    found = merge_options(recipe, {"beam_size": 2, "length_penalty": None, "batch_tokens": 9}, KNOWN)
    assert found == BeamSearchConfig(beam_size=2, length_penalty=0.7)


@pytest.mark.parametrize(
    ("options", "expected"),
    [({"beamsize": 1}, r"expected a known option, found 'beamsize'; .*beam_size"), ({"beam_size": 0}, r"decoding: beam_size|decoding")],
)
def test_what_does_not_fit_is_refused(options: dict[str, int], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        merge_options(BeamSearchConfig(), options, KNOWN)


def test_every_setting_is_an_option_of_its_command() -> None:
    assert {"beam_size", "length_penalty", "min_length", "max_length"} <= set(translate_options.TranslateOptions.__annotations__)
    assert {"temperature", "top_k", "seed", "stop"} <= set(generator.GenerateOptions.__annotations__)
