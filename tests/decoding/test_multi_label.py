"""Classifiers with any number of labels per text: metrics against scikit-learn, thresholds against trying all, and windows."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score, hamming_loss, precision_recall_fscore_support

from transom.config.data import TokenizerConfig
from transom.config.model import TextClassifierConfig
from transom.data.pairs.pairs import Pairs
from transom.data.tokenizer.tokenizer import Tokenizer
from transom.decoding.predictors.multi_label import (
    MIN_POSITIVES,
    LabelsPrediction,
    MultiLabelClassifier,
    choose_thresholds,
    evaluate_label_sets,
    label_set_scores,
)
from transom.models.build import build_model

WORDS = [f"word{i}" for i in range(20)]
TOKENIZER = Tokenizer.train([" ".join(WORDS)], TokenizerConfig(kind="whitespace", vocab_size=40))


def draw_case(n: int, n_labels: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    return draw.random((n, n_labels)), (draw.random((n, n_labels)) < 0.4).astype(np.uint8)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 50), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_the_same_as_scikit_learn(n: int, n_labels: int, seed: int) -> None:
    p, labels = draw_case(n, n_labels, seed)
    thresholds = np.random.default_rng(seed).uniform(0.2, 0.8, n_labels)
    classes, texts = [f"label {k}" for k in range(n_labels)], [f"text {i}" for i in range(n)]
    ours, found = evaluate_label_sets(p, labels, thresholds, Pairs(texts, texts, "here"), classes, texts), (p >= thresholds).astype(int)
    used = [k for k in range(n_labels) if labels[:, k].any() or found[:, k].any()]
    assert [label for label, _ in ours.classes] == [classes[k] for k in used]
    if n_labels > 1:
        for average in ("micro", "macro", "weighted"):
            expected = (
                precision_recall_fscore_support(labels, found, average=average, labels=used, zero_division=0)[:3] if used else (0, 0, 0)
            )
            assert tuple(getattr(ours, average)) == pytest.approx(expected), average
        assert ours.subset_accuracy == pytest.approx(100 * accuracy_score(labels, found))
        assert list(ours.right) == [accuracy_score([row], [other]) == 1 for row, other in zip(labels, found, strict=True)]
        assert ours.hamming_loss == pytest.approx(hamming_loss(labels, found))
        scores = label_set_scores(p, labels, thresholds)
        assert scores["micro_f1"] == pytest.approx(100 * ours.micro.f1) and scores["macro_f1"] == pytest.approx(100 * ours.macro.f1)
        assert scores["hamming_loss"] == ours.hamming_loss and scores["subset_accuracy"] == ours.subset_accuracy
    distances = [abs(each.expected - each.p) for each in ours.errors]
    assert distances == sorted(distances, reverse=True) and len({each.item for each in ours.errors}) == len(distances)
    assert sum(each.n for each in ours.calibration) == labels.size
    json.dumps(ours.to_json(), allow_nan=False)


@pytest.mark.long
@settings(max_examples=10, deadline=None)
@given(st.integers(1, 60), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_no_other_threshold_has_a_better_f1(n: int, n_labels: int, seed: int) -> None:
    p, labels = draw_case(n, n_labels, seed)
    for k, threshold in enumerate(choose_thresholds(p, labels)):
        n_present = int(labels[:, k].sum())
        if min(n_present, n - n_present) < MIN_POSITIVES:
            assert threshold == 0.5
            continue
        best = max(f1_score(labels[:, k], p[:, k] >= other, zero_division=0) for other in np.arange(1, 256) / 256)
        assert f1_score(labels[:, k], p[:, k] >= threshold, zero_division=0) == pytest.approx(best)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_threshold_is_the_same_in_every_precision(dtype: torch.dtype) -> None:
    p, labels = draw_case(200, 30, 3)
    chosen = torch.from_numpy(choose_thresholds(p, labels))
    assert len(set(chosen.tolist())) > 10 and torch.equal(chosen.to(dtype).double(), chosen)


@pytest.fixture
def classifier() -> MultiLabelClassifier:
    torch.manual_seed(1)
    sizes = {"d_model": 16, "d_ff": 16, "n_heads": 2, "n_layers": 1, "max_seq_len": 8, "vocab_size": TOKENIZER.vocab_size}
    model = build_model(TextClassifierConfig(**sizes, classes=("a", "b", "c"), multi_label=True))  # type: ignore[arg-type]
    model.get_buffer("thresholds").copy_(torch.tensor([0.0, 1.0, 0.5]))
    return MultiLabelClassifier(model.eval(), TOKENIZER)  # type: ignore[arg-type]


def test_labels_whose_probability_reaches_the_threshold(classifier: MultiLabelClassifier) -> None:
    texts = ["word1 word2", "word3"]
    p = classifier.predict_proba(texts)
    assert p.shape == (2, 3) and not np.allclose(p.sum(1), 1)
    for row, found in zip(p, classifier.classify(texts), strict=True):
        assert set(found.labels) == {"a"} | ({"c"} if row[2] >= 0.5 else set())
        assert found.probabilities == {label: pytest.approx(value) for label, value in zip("abc", row, strict=True)}
        assert list(found.probabilities.values()) == sorted(row, reverse=True)


def test_logits_are_averaged_over_windows(classifier: MultiLabelClassifier) -> None:
    parts = [" ".join(WORDS[i : i + 7]) for i in (0, 7)]
    (whole,) = classifier.classify([" ".join(parts)], too_long="window")
    logits = np.log(classifier.predict_proba(parts)) - np.log1p(-classifier.predict_proba(parts))
    expected = 1 / (1 + np.exp(-logits.mean(0)))
    assert [whole.probabilities[label] for label in "abc"] == pytest.approx(expected, rel=1e-5) and whole.windows == 2
    assert classifier.classify([" ".join(parts)])[0].n_dropped_tokens == 7


def test_a_prediction_as_text() -> None:
    found = LabelsPrediction(["b", "a"], {"b": 0.75, "a": 0.5, "c": 0.1})
    assert str(found) == "b (75.0%), a (50.0%)" and found.joined == "a|b" and "predicted" in found._repr_html_()
    assert str(LabelsPrediction([], {"a": 0.1})) == "(no label)"
