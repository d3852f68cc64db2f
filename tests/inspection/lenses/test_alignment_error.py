"""Alignment error rates against sets of links written out by hand."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.models.combinations import SET_RECURRENT, described
from tests.models.tiny import seq2seq
from transom.config.data import LanguageConfig, PhrasebookConfig
from transom.data.synthetic.phrasebook.linked_text import WordLink
from transom.data.tokenizer.tokenizer import Tokenizers
from transom.errors import ConfigError
from transom.inspection.lenses import alignment_error
from transom.inspection.lenses.alignment_error import LinkedPair, alignment_errors, attended_links, linked_pairs
from transom.models.build import build_model
from transom.tasks.translation.schema import TranslationDataConfig

PAIRS = [
    LinkedPair(
        "he likes doors", "a él le gustan", [WordLink(0, 0, False), WordLink(0, 1, True), WordLink(0, 2, False), WordLink(1, 3, True)]
    ),
    LinkedPair("the cat", "el gato", [WordLink(0, 0, True), WordLink(1, 1, True)]),
]


def one_hot(columns: list[int], n: int) -> Tensor:
    return torch.nn.functional.one_hot(torch.tensor([*columns, n - 1]), n).double()


def test_a_word_that_attends_to_another_symbol_has_no_link() -> None:
    weights = torch.tensor([[0.1, 0.6, 0.2, 0.1], [0.7, 0.1, 0.1, 0.1], [0.1, 0.1, 0.1, 0.7], [0.2, 0.2, 0.5, 0.1]])
    assert attended_links(weights, n_source=3) == {(1, 0), (0, 1), (2, 3)}
    assert attended_links(weights, n_source=2, n_before=1) == {(0, 0), (1, 3)}, "a language tag comes first"


def test_rates_are_those_of_och_and_ney(monkeypatch: pytest.MonkeyPatch) -> None:
    """Head 0 finds 4 right links and a wrong one; head 1 attends to the end symbol, except for one sure link."""
    maps = {
        PAIRS[0].source: torch.stack([one_hot([0, 0, 2, 1], 4), one_hot([3, 3, 3, 3], 4)])[None],
        PAIRS[1].source: torch.stack([one_hot([0, 2], 3), one_hot([0, 2], 3)])[None],
    }
    monkeypatch.setattr(alignment_error, "_word_weights", lambda model, tokenizers, pair, to: maps[pair.source])
    model: Any = build_model(seq2seq())
    first, second, mean, whole, diagonal = alignment_errors(model, object.__new__(Tokenizers), PAIRS)
    # A has 5 links: 3 of 4 sure ones, one possible, one wrong
    assert first[:2] == ("decoder.blocks.0.cross", 0) and first[2:] == pytest.approx((1 - (3 + 4) / (5 + 4), 4 / 5, 3 / 4, 5))
    assert second[2:] == pytest.approx((1 - (1 + 1) / (1 + 4), 1.0, 1 / 4, 1))
    assert mean[:2] == ("decoder.blocks.0.cross", None) and whole[:2] == ("", None) and mean[2:] == whole[2:]
    # the diagonal links source words 0 1 1 2 of the first pair, of which the first is possible, and both of the second
    assert diagonal[:2] == ("diagonal", None) and diagonal[2:] == pytest.approx((1 - (2 + 3) / (6 + 4), 3 / 6, 2 / 4, 6))


def data(**fields: Any) -> TranslationDataConfig:
    return TranslationDataConfig.model_validate(fields)


def test_pairs_are_those_of_the_run_and_its_direction() -> None:
    plain = linked_pairs(data(generate=PhrasebookConfig(n_train=100, n_valid=10, n_test=12)), 6)
    assert plain[0] == ("hello world", "hola mundo", (WordLink(0, 0, True), WordLink(1, 1, True)))
    generate = PhrasebookConfig(n_train=100, n_valid=10, n_test=12)
    both = data(languages=(LanguageConfig(tag="es", generate=generate), LanguageConfig(tag="en", generate=generate, reverse=True)))
    for there, back in zip(linked_pairs(both, 6, to="es"), linked_pairs(both, 6, to="en"), strict=True):
        assert (there.source, there.target) == (back.target, back.source)
        assert {(j, i, sure) for i, j, sure in there.links} == set(back.links)
    with pytest.raises(ConfigError, match="to: expected es or en, found none"):
        linked_pairs(both, 6)
    with pytest.raises(ConfigError, match="pairs: expected at most 12, the test pairs of the run, found 13"):
        linked_pairs(data(generate=generate), 13)
    with pytest.raises(ConfigError, match="expected a run of the phrasebook"):
        linked_pairs(data(generate="copy"), 6)


def test_a_model_without_cross_attention_is_refused() -> None:
    assert SET_RECURRENT[0]["attention"] == "none"
    model: Any = build_model(described(SET_RECURRENT[0]))
    with pytest.raises(ConfigError, match="expected a model with cross-attention"):
        alignment_errors(model, object.__new__(Tokenizers), PAIRS)
