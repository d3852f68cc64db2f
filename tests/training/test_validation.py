"""What a validation measures, against scoring pair by pair and against sacreBLEU."""

import math

import pytest
import torch

from tests.decoding.models import LETTERS, letter_tokenizers, tiny_model
from transom.config.data import PairTokenizerConfig as TokenizerConfig
from transom.config.decoding import BeamSearchConfig
from transom.data.pairs.loader import length_sorted_batches
from transom.data.pairs.pairs import Pairs
from transom.data.tokenizer.tokenizer import Tokenizer, Tokenizers
from transom.decoding.predictors.likelihood import perplexity
from transom.decoding.predictors.translator import Translator
from transom.training import validation
from transom.training.translation_metrics import bleu, chrf
from transom.training.validation import validation_loss, validation_translation_scores

PAIRS = Pairs(["abc", "d.", "gfedcba", "hh a"], ["a", "bcd ef", "hgf!", "c"], "made up")


def test_the_loss_is_that_of_all_tokens_however_they_are_batched() -> None:
    tokenizers = letter_tokenizers()
    model = tiny_model(tokenizers.target.vocab_size)
    exactly = torch.autocast("cpu", enabled=False)
    scores = Translator(model, tokenizers).score(PAIRS.source, PAIRS.target)
    for batch_tokens in (8, 99):
        figures = validation_loss(model, length_sorted_batches(PAIRS, tokenizers, batch_tokens, 24), exactly)
        assert figures["perplexity"] == pytest.approx(perplexity(scores)) == pytest.approx(math.exp(figures["loss"]))


@pytest.mark.parametrize("lowercase", [True, False])
def test_case_counts_where_the_model_has_it(lowercase: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Tokenizer.train([LETTERS], TokenizerConfig(kind="char", vocab_size=64, lowercase=lowercase))
    references = ["A man sleeps on a Bench in the Park.", "Two Dogs play in the snow today.", "never read"]
    found = [reference.lower() for reference in references[:2]]
    monkeypatch.setattr(Translator, "translate", lambda self, texts, to: found[: len(texts)])
    pairs = Pairs(["x", "y", "z"], references, "made up")
    tokenizers = Tokenizers(tokenizer)
    scores, samples = validation_translation_scores(
        tiny_model(tokenizer.vocab_size), {None: pairs}, 2, tokenizers, BeamSearchConfig(), torch.float32
    )
    assert scores == {score.__name__: score(found, references[:2], lowercase).value for score in (bleu, chrf)}
    assert (scores["bleu"] == pytest.approx(100)) is lowercase
    assert (
        samples[1] == {"source": "y", "reference": references[1], "translation": found[1]}
        and len(samples) == 2 < validation.N_SHOWN_TRANSLATIONS
    )
