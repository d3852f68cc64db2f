"""Decoding by whole passes gives the logits of decoding with a cache, for every family that generates text."""

from typing import Any

import pytest
import torch

from tests.models.combinations import FAMILIES, SET_RECURRENT, SIZES, described, prompt_for
from tests.models.test_combinations import built
from transom.config.architecture import EncoderDecoderConfig
from transom.data.batch import PaddedSequences
from transom.decoding.backends.whole_passes import WholePassDecoder
from transom.models.base import GenerativeModel


@pytest.mark.parametrize("fields", [*FAMILIES, SET_RECURRENT[0], SET_RECURRENT[-1]], ids=lambda each: each["kind"])
def test_each_step_has_the_logits_of_a_step_with_a_cache(fields: dict[str, Any]) -> None:
    config = described((SIZES if "d_model" not in fields else {}) | fields)
    model = built(config)
    assert isinstance(model, GenerativeModel)
    pair = isinstance(config, EncoderDecoderConfig)
    source = prompt_for(config) if pair else PaddedSequences.pad([[1, 5, 8], [1, 7, 3]])
    first = torch.tensor([[1], [1], [1], [1]]) if pair else source.tokens[:, -1:].repeat_interleave(2, 0)
    whole = WholePassDecoder(model)
    with torch.inference_mode():
        caches: Any = [each.start(each.encode(source), 2, 9) for each in (model, whole)]
        for tokens, rows in (
            (first, None),
            (torch.tensor([[4], [6], [7], [2]]), [1, 1, 2, 3]),
            (torch.tensor([[3], [5], [8], [6]]), [2, 3]),
        ):
            expected, found = (
                each.step(tokens[: len(caches[1].tokens)], cache) for each, cache in zip((model, whole), caches, strict=True)
            )
            assert torch.allclose(found, expected, rtol=0, atol=1e-10)
            for cache in caches:
                if rows is not None:
                    if len(rows) == 2:
                        cache.select_sources(torch.tensor([1]))
                    cache.reorder(torch.tensor(rows))
        expected, found = (each.step(torch.tensor([[5], [4]]), cache) for each, cache in zip((model, whole), caches, strict=True))
        assert torch.allclose(found, expected, rtol=0, atol=1e-10) and found.shape[:2] == (2, 1)
