"""Encoder predictors: mask filling, classification and embedding, independent of batching; texts that are too long."""

import math

import numpy as np
import pytest
import torch

from transom.config.data import TokenizerConfig
from transom.config.decoding import TextInferenceConfig
from transom.config.model import MaskedLMConfig, TextClassifierConfig
from transom.data.batch import LabeledTextBatch, MaskedBatch, PaddedSequences
from transom.data.pairs.pairs import Pairs
from transom.data.tokenizer.special_tokens import EOS, UNK
from transom.data.tokenizer.tokenizer import Tokenizer
from transom.decoding.predictors.class_metrics import evaluate_predictions
from transom.decoding.predictors.classifier import Classifier, ClassPrediction
from transom.decoding.predictors.embedder import Embedder
from transom.decoding.predictors.fill_mask import MaskFiller
from transom.decoding.predictors.long_texts import check_long_text_policy
from transom.errors import ConfigError, DataError
from transom.models.build import build_model
from transom.models.encoder import MaskedEncoderTransformer, TextClassifierTransformer

TEXTS = ["the red house", "a green tree and a red house", "tree", "the sky is blue", ""]
BPE = Tokenizer.train(TEXTS * 3, TokenizerConfig(kind="bpe", vocab_size=290))
WORD_LEVEL = Tokenizer.train(TEXTS * 3, TokenizerConfig(kind="whitespace", vocab_size=20))
SIZES = {"d_model": 8, "n_heads": 2, "n_layers": 1, "d_ff": 16, "max_seq_len": 8, "dropout": 0.2}


def mask_filler(tokenizer: Tokenizer = WORD_LEVEL) -> MaskFiller:
    torch.manual_seed(1)
    model = build_model(MaskedLMConfig.model_validate(SIZES | {"vocab_size": tokenizer.vocab_size})).double()
    assert isinstance(model, MaskedEncoderTransformer)
    return MaskFiller(model, tokenizer)


def classifier() -> Classifier:
    torch.manual_seed(2)
    model = build_model(
        TextClassifierConfig.model_validate(SIZES | {"vocab_size": WORD_LEVEL.vocab_size, "classes": ["x", "y", "z"]})
    ).double()
    assert isinstance(model, TextClassifierTransformer)
    return Classifier(model, WORD_LEVEL, TextInferenceConfig(batch_tokens=10))


def test_guesses_are_the_models_probabilities_without_special_symbols() -> None:
    answers = mask_filler()
    ((gap,),) = answers.fill(["the [MASK] house"], top_k=100)
    mask = WORD_LEVEL.vocab_size
    row = PaddedSequences.pad([[EOS, *WORD_LEVEL.encode("the"), mask, *WORD_LEVEL.encode("house")]])
    with torch.no_grad():
        logits = answers.model.eval()(MaskedBatch(row, row.tokens, row.tokens == mask, (0,)))[0, 2]
    p = logits[UNK + 1 : mask].softmax(-1)
    assert sum(guess.p for guess in gap) == pytest.approx(1.0) and len(gap) == mask - UNK - 1
    expected = {WORD_LEVEL.decode([UNK + 1 + i]): float(value) for i, value in enumerate(p)}
    assert {guess.text: pytest.approx(guess.p) for guess in gap} == expected
    assert [guess.p for guess in gap] == sorted((guess.p for guess in gap), reverse=True)


def test_progress_is_told_of_all_texts() -> None:
    told: list[tuple[int, int]] = []
    answers, long = classifier(), " ".join(["tree sky red"] * 6)
    answers.classify([*TEXTS, long], "window", lambda done, total: told.append((done, total)))
    assert told[-1] == (len(TEXTS) + 3, len(TEXTS) + 3) and told == sorted(told) and len(told) > 1
    told.clear()
    Embedder(answers.model, WORD_LEVEL, TextInferenceConfig(batch_tokens=10)).embed(
        TEXTS, notify=lambda done, total: told.append((done, total))
    )
    assert told[-1] == (5, 5) and told == sorted(told) and len(told) > 1
    told.clear()
    mask_filler().fill(["a [MASK]", "[MASK] tree"], notify=lambda done, total: told.append((done, total)))
    assert told == [(1, 2), (2, 2)]


def test_gaps_stand_for_a_word_with_its_space() -> None:
    spaced, bare = mask_filler(BPE)._pieces("the [MASK] house"), mask_filler(BPE)._pieces("the[MASK] house")
    assert spaced == bare == BPE.encode_batch(["the", " house"])
    assert len(mask_filler(BPE).fill(["[MASK] house [MASK]"], top_k=2)[0]) == 2
    with pytest.raises(DataError, match=r"expected \[MASK\] in the text"):
        mask_filler().fill(["no gap"])


def test_a_text_that_is_too_long_is_read_around_its_gaps_or_refused() -> None:
    answers, before, behind = mask_filler(), "tree sky " * 5, " red house" * 5
    found = answers.fill_with_details([f"{before}[MASK]{behind}"])[0]
    whole, n_dropped_tokens = found.masks, found.n_dropped_tokens
    assert n_dropped_tokens == 1 + len(WORD_LEVEL.encode(f"{before}{behind}")) + 1 - 8
    assert (whole, 0) == (answers.fill([f"{before}[MASK]{behind}"])[0], answers.fill_with_details(["tree [MASK]"])[0].n_dropped_tokens)
    row = [*WORD_LEVEL.encode(before), 0, *WORD_LEVEL.encode(behind)]
    assert len(whole) == 1 and len(row) + 1 > 8
    mask = WORD_LEVEL.vocab_size
    window = answers._window([EOS, *(mask if token == 0 else token for token in row)], mask, "window")
    assert len(window) == 8 and window.index(mask) in (3, 4)
    assert answers._window([EOS, mask, *row[:9]], mask, "window")[:2] == [EOS, mask]
    assert answers._window([EOS, *row[:9], mask], mask, "window")[-1] == mask
    with pytest.raises(DataError, match="expected a text of at most 8 tokens"):
        answers.fill([f"{before}[MASK]{behind}"], too_long="refuse")
    with pytest.raises(DataError, match="masks closer together"):
        answers.fill([f"[MASK]{behind}[MASK]"])


def test_classes_are_the_models_probabilities_in_batches_as_alone() -> None:
    answers = classifier()
    found = answers.classify(TEXTS)
    assert answers.model.training, "the model is as it was"
    for text, together in zip(TEXTS, found, strict=True):
        row = PaddedSequences.pad([[EOS, *WORD_LEVEL.encode(text)]])
        with torch.no_grad():
            p = answers.model.eval()(LabeledTextBatch(row, torch.tensor([0]), (0,)))[0].softmax(-1)
        answers.model.train()
        assert together.probabilities == {name: pytest.approx(float(value)) for name, value in zip("xyz", p, strict=True)}
        assert (together.label, together.p) == max(together.probabilities.items(), key=lambda entry: entry[1])
    with pytest.raises(DataError, match="expected a list of texts"):
        answers.classify("one text")


def test_a_long_text_is_truncated_read_in_windows_or_refused() -> None:
    answers, long = classifier(), " ".join(["tree sky red"] * 6)
    (cut,), (windows,) = answers.classify([long]), answers.classify([long], too_long="window")
    words = long.split()
    assert cut.probabilities == answers.classify([" ".join(words[:7])])[0].probabilities
    assert (cut.n_dropped_tokens, cut.windows, windows.n_dropped_tokens, windows.windows) == (11, 1, 0, 3)
    parts = answers.classify([" ".join(words[i : i + 7]) for i in (0, 7, 14)])
    means = {name: math.exp(sum(math.log(part.probabilities[name]) for part in parts) / 3) for name in "xyz"}
    assert windows.probabilities == {name: pytest.approx(p / sum(means.values())) for name, p in means.items()}
    with pytest.raises(DataError, match="text 2: expected at most 7 tokens, found 18"):
        answers.classify(["tree", long], too_long="refuse")
    with pytest.raises(ConfigError, match="too_long: expected 'truncate', 'window' or 'refuse', found 'cut'"):
        check_long_text_policy("cut", "truncate", "window", "refuse")


def test_scores_count_what_was_found() -> None:
    found = [ClassPrediction(label, 1.0, {}, 0, 1) for label in "xxyz"]
    known = Pairs(["", "", "", ""], ["x", "y", "y", "y"], "here")
    scores = evaluate_predictions(found, known.target, known, ("x", "y", "z", "never"))
    assert (scores.accuracy, scores.n) == (50.0, 4)
    assert {label: tuple(each) for label, each in scores.classes} == {
        "x": (1, 1.0, 0.5, pytest.approx(2 / 3)),
        "y": (3, pytest.approx(1 / 3), 1.0, 0.5),
        "z": (0, 0.0, 0.0, 0.0),
    }
    with pytest.raises(DataError, match="line 1: expected one of the classes 'y', found 'x'"):
        evaluate_predictions(found, known.target, known, ("y",))


def test_vectors_are_means_of_real_tokens_in_batches_as_alone() -> None:
    model = classifier().model
    embedder = Embedder(model, WORD_LEVEL, TextInferenceConfig(batch_tokens=10))
    vectors = embedder.embed(TEXTS, normalize=False)
    for text, vector in zip(TEXTS, vectors, strict=True):
        row = PaddedSequences.pad([[EOS, *WORD_LEVEL.encode(text)]])
        with torch.no_grad():
            expected = model.eval().encode(row)[0].mean(0)
        assert torch.allclose(torch.from_numpy(vector).double(), expected, atol=1e-6)
    assert np.allclose(np.linalg.norm(embedder.embed(TEXTS), axis=1), 1)
    with pytest.raises(DataError, match="expected a list of texts"):
        embedder.embed("one text")


def test_the_vector_of_windows_is_the_mean_over_the_tokens_of_all() -> None:
    model, long = classifier().model, " ".join(["tree sky red"] * 6)
    embedder = Embedder(model, WORD_LEVEL)
    cut, windows = (embedder.embed_with_details(["tree", long], normalize=False, too_long=each) for each in ("truncate", "window"))
    assert (cut.n_dropped_tokens, cut.windows, cut.n_too_long) == ([0, 11], [1, 1], 1)
    assert (windows.n_dropped_tokens, windows.windows, windows.n_too_long) == ([0, 0], [1, 3], 1)
    assert torch.equal(cut.vectors[0], windows.vectors[0]) and np.array_equal(cut.vectors, embedder.embed(["tree", long], normalize=False))
    row = WORD_LEVEL.encode(long)
    with torch.no_grad():
        states = [model.eval().encode(PaddedSequences.pad([[EOS, *row[i : i + 7]]]))[0] for i in (0, 7, 14)]
    assert torch.allclose(windows.vectors[1].double(), torch.cat(states).mean(0), atol=1e-6)
    with pytest.raises(DataError, match="text 2: expected at most 7 tokens, found 18"):
        embedder.embed(["tree", long], too_long="refuse")
    assert embedder.embed([]).shape == (0, model.config.d_model)


def test_a_mask_in_a_text_is_one_token() -> None:
    filler = mask_filler()
    tokens = filler.encode("the [MASK] sees the [MASK]")
    assert tokens.count(filler.tokenizer.vocab_size) == 2
    assert (
        filler.text_batch(tokens)[0].source.tokens.tolist() == filler.masked_batch("the [MASK] sees the [MASK]")[0].source.tokens.tolist()
    )
    assert filler.encode("the") == filler.tokenizer.encode("the")
