"""The checks of learning: losses of trivial predictors by hand, and runs that went wrong."""

import math
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from tests.inspection.doctor.samples import FAMILIES, built, checkup_of, data_for, found_by
from transom.data.batch import LabeledTextBatch, MultiLabelTextBatch
from transom.errors import ConfigError
from transom.inspection.doctor.baselines import PRIOR, bigram_loss, label_set_losses, unigram_loss
from transom.inspection.doctor.checks import CHECKS, run_checks, select_checks
from transom.inspection.doctor.checkup import Checkup
from transom.inspection.doctor.learning import measured_loss

Record = dict[str, Any]


def trained(losses: list[float | None], rate: float = 0.0, **more: float) -> list[Record]:
    """Write lines of training metrics, every 100 steps, with a learning rate that falls from 1 to ``rate``."""
    n = len(losses)
    rates = [1 - (1 - rate) * i / max(n - 1, 1) for i in range(n)]
    return [
        {"step": 100 * (i + 1), "kind": "train", "loss": value, "nll": value, "learning_rate": rates[i], "skipped": 0.0} | more
        for i, value in enumerate(losses)
    ]


def validated(losses: list[float | None]) -> list[Record]:
    """Write lines of validation metrics, every 100 steps."""
    best = min(range(len(losses)), key=lambda i: math.inf if losses[i] is None else losses[i])
    return [
        {"step": 100 * (i + 1), "kind": "validation", "loss": value, "best": i == best, "seconds": 1.0, "samples": []}
        for i, value in enumerate(losses)
    ]


def test_losses_of_trivial_predictors_are_those_by_hand() -> None:
    draw = torch.Generator().manual_seed(1)
    labels, contexts = (torch.randint(0, n, (60,), generator=draw) for n in (5, 3))
    ys, xs = labels.tolist(), contexts.tolist()
    one, two = 0.0, 0.0
    for i, (x, y) in enumerate(zip(xs, ys, strict=True)):
        others = [(xs[j], ys[j]) for j in range(60) if j != i]
        p = (sum(b == y for _, b in others) + 1 / 5) / (len(others) + 1)
        both = Counter(others)[x, y]
        one -= math.log(p) / 60
        two -= math.log((both + PRIOR * p) / (sum(a == x for a, _ in others) + PRIOR)) / 60
    assert unigram_loss(labels, 5) == pytest.approx(one, rel=1e-12)
    assert bigram_loss(labels, contexts, 5) == pytest.approx(two, rel=1e-12)
    assert bigram_loss(labels, labels, 5) < 0.5 * one, "a context that tells the label"
    sets = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    source = data_for(built(FAMILIES["classifier"]))[0].source  # type: ignore[attr-defined]
    half, frequencies = label_set_losses([MultiLabelTextBatch(source, sets, (0, 1, 2))])
    expected = 0.0
    for i, row in enumerate(sets.tolist()):
        for j, label in enumerate(row):
            p = (sum(sets[k, j].item() for k in range(3) if k != i) + 0.5) / 3
            expected -= math.log(p if label else 1 - p) / 3
    assert half == pytest.approx(2 * math.log(2)) and frequencies == pytest.approx(expected)


def test_the_loss_is_the_mean_over_labels() -> None:
    for kind in ("decoder", "classifier", "vit", "encoder"):
        model = built(FAMILIES[kind])
        total, n = 0.0, 0
        for batch in data_for(model):
            with torch.no_grad():
                logits = model.double()(batch if kind != "vit" else batch.pixels.double())  # type: ignore[attr-defined]
            total += float(nn.functional.cross_entropy(logits[batch.loss_mask], batch.labels[batch.loss_mask], reduction="sum"))
            n += batch.n_target_tokens
        assert measured_loss(checkup_of(built(FAMILIES[kind]))) == pytest.approx(total / n, rel=1e-5)


def scaled(kind: str, factor: float) -> Checkup:
    """Prepare a model with larger logits, trained for 1,000 steps."""
    model = built(FAMILIES[kind] | {"tie_embeddings": False} if kind == "decoder" else FAMILIES[kind])
    model.unembedding.weight.data *= factor
    return checkup_of(model, metrics=trained([3.0] * 10))


def test_a_loss_worse_than_guessing_is_a_problem_after_many_steps() -> None:
    for kind in ("decoder", "encoder", "classifier"):
        checkup = scaled(kind, 30.0)
        found = found_by("loss", checkup)
        assert found.verdict == "problem" and "worse than guessing" in found.advice, kind
        for metrics, verdict in ((), "warning"), (trained([3.0])[:1], "problem"), ([{"step": 9, "kind": "skipped"}], "ok"):
            assert found_by("loss", Checkup(checkup.model, checkup.batches, metrics=metrics)).verdict == verdict


def test_a_loss_worse_than_frequencies_is_a_warning() -> None:
    found = found_by("loss", scaled("decoder", 0.0))
    assert found.verdict == "warning" and found.value == pytest.approx(math.log(11), rel=1e-6)
    assert "uniform (ln 11) 2.40, token frequencies" in found.message and "bigrams" in found.message


def test_a_loss_that_is_too_low_is_a_warning() -> None:
    checkup = scaled("decoder", 0.0)
    model: Any = checkup.model
    model.logit_factors = lambda batch, observer=None: (nn.functional.one_hot(batch.labels, 11).float() * 50, torch.eye(11))
    found = found_by("loss", checkup)
    assert found.verdict == "warning" and "validation texts in the training data" in found.advice


def test_weights_that_are_not_those_of_the_run_are_a_problem() -> None:
    for difference, verdict in ((0.1, "ok"), (-1.2, "problem")):
        checkup = checkup_of(FAMILIES["decoder"])
        value = measured_loss(checkup)
        metrics = [{**validated([value + difference])[0], "step": 20}]
        found = found_by("loss", checkup_of(FAMILIES["decoder"], metrics=metrics))
        assert found.verdict == verdict, found
    assert "changed since training" in found.advice


COURSES: dict[str, tuple[str, list[Record], str, str]] = {
    "falling": ("training", trained([5, 4, 3, 2.5, 2, 1.8, 1.7, 1.65]), "ok", ""),
    "still falling": ("training", trained([8, 7, 6, 5, 4, 3, 2, 1]), "ok", "still falling"),
    "diverged": ("training", trained([5, 4, 3, 2.5, 4, 6, 8, 9]), "problem", "training diverged"),
    "NaN": ("training", trained([5, 4, 3, 2, 2, 2, 2, None]), "problem", "earlier checkpoint"),
    "rising at a high rate": ("training", trained([5, 4, 3, 2, 1.5, 1.2, 1.5, 1.6], 0.9), "warning", "rises again"),
    "flat at a high rate": ("training", trained([5, 3, 2, 2, 2, 2, 2, 2], 1.0), "warning", "schedule that decays"),
    "skipped": ("training", trained([5, 4, 3, 2.5, 2, 1.8, 1.7, 1.65], skipped=20.0), "warning", "lower"),
    "too short": ("training", trained([5, 4]), "not applicable", ""),
    "general": ("generalization", trained([2.0] * 5) + validated([4, 3, 2.5, 2.2, 2.1]), "ok", "longer may help"),
    "overfitted": ("generalization", trained([0.5] * 5) + validated([4, 2, 2.5, 3, 3.4]), "warning", "overfitting after step 200"),
    "far better on its own": ("generalization", trained([0.2] * 5) + validated([4, 3, 2.5, 2.2, 2.2]), "warning", "far better"),
    "validation is NaN": ("generalization", trained([2.0] * 5) + validated([4, 3, None]), "problem", "lower"),
    "no validation": ("generalization", trained([2.0] * 5), "not applicable", ""),
}


@pytest.mark.parametrize("case", COURSES)
def test_the_course_of_training_is_judged(case: str) -> None:
    name, metrics, verdict, advice = COURSES[case]
    found = found_by(name, checkup_of(FAMILIES["decoder"], metrics=metrics))
    assert found.verdict == verdict and advice in found.advice, found


N_HEALTHY = 20
"""Healthy runs of each check of learning."""


def falling(draw: random.Random, n: int, floor: float) -> list[float | None]:
    """Draw losses that fall to a floor, with noise."""
    first, rate = floor + draw.uniform(2, 8), draw.uniform(4, 9)
    return [floor + (first - floor) * math.exp(-rate * i / n) + draw.gauss(0, 0.002) * floor for i in range(n)]


@pytest.mark.parametrize("seed", range(N_HEALTHY))
def test_healthy_trainings_pass(seed: int) -> None:
    draw = random.Random(seed)
    floor, n = draw.uniform(0.5, 4), draw.randrange(8, 60)
    metrics = trained(falling(draw, n, floor), draw.uniform(0, 0.1)) + validated(falling(draw, n, floor * draw.uniform(1.0, 1.15)))
    checkup = checkup_of(FAMILIES["decoder"], metrics=metrics)
    for name in ("training", "generalization"):
        assert (found := found_by(name, checkup)).verdict == "ok", found


@pytest.mark.parametrize("seed", range(N_HEALTHY))
def test_healthy_losses_and_probabilities_pass(seed: int) -> None:
    """The decoder knows the next token with some probability; the labels of the classifier are drawn from its probabilities."""
    draw, torch_draw = random.Random(seed), torch.Generator().manual_seed(seed)
    checkup = scaled("decoder", 0.0)
    model: Any = checkup.model
    factor = math.log(10 * draw.uniform(0.5, 9))  # a probability from 1/3 to 0.9 of 11 symbols
    model.logit_factors = lambda batch, observer=None: (nn.functional.one_hot(batch.labels, 11).float() * factor, torch.eye(11))
    value = measured_loss(checkup)
    found = found_by("loss", Checkup(model, checkup.batches, metrics=trained([3.0] * 10) + validated([value * 1.01])))
    assert found.verdict == "ok" and found.value == pytest.approx(-math.log(math.exp(factor) / (math.exp(factor) + 10)), rel=1e-4), found
    labeled_checkup, n = labeled(0.5, 150, 300), 300
    logits = torch.randn(n, 2, generator=torch_draw) * draw.uniform(0.3, 4)
    labels = torch.multinomial(logits.softmax(-1), 1, generator=torch_draw)[:, 0]
    classifier: Any = labeled_checkup.model
    classifier.forward = lambda batch, observer=None: logits
    batch: Any = labeled_checkup.batches[0]
    found = found_by("calibration", Checkup(classifier, [replace(batch, labels=labels)]))
    assert found.verdict == "ok", found


def labeled(confidence: float, n_right: int, n: int = 100) -> Checkup:
    """Prepare a classifier that gives one of two classes a probability, and is right for ``n_right`` of 100 texts."""
    model: Any = built(FAMILIES["classifier"])
    source = data_for(model)[0].source  # type: ignore[attr-defined]
    batch = LabeledTextBatch(source, torch.tensor([0] * n_right + [1] * (n - n_right)), tuple(range(n)))
    logits = torch.tensor([math.log(confidence), math.log(1 - confidence)]).expand(n, 2)
    model.forward = lambda batch, observer=None: logits
    return Checkup(model, [batch])


def test_overconfidence_is_measured_and_a_temperature_advised() -> None:
    assert found_by("calibration", labeled(0.8, 79)).verdict == "ok"
    found = found_by("calibration", labeled(0.99, 70))
    noise = math.sqrt(0.99 * 0.01 / 100)
    assert found.verdict == "warning" and found.value == pytest.approx(0.29, abs=1e-6) and found.bound == pytest.approx(0.1 + noise)
    expected = math.log(99) / math.log(0.7 / 0.3)
    assert float(found.advice.split("divide logits by ")[1].split(",")[0]) == pytest.approx(expected, rel=0.1)
    assert found_by("calibration", labeled(0.8, 20, 30)).verdict == "not applicable"
    assert found_by("calibration", checkup_of(FAMILIES["decoder"])).message == "the model is no classifier"


def test_checks_are_chosen_by_name_and_end_with_the_time() -> None:
    assert select_checks(None) == list(CHECKS) and select_checks(["cache", "finite"]) == ["finite", "cache"]
    with pytest.raises(ConfigError, match=r"checks: expected finite, causality, .*, found 'cashe'; did you mean cache\?"):
        select_checks(["cashe"])
    told = list[tuple[int, int]]()
    found = run_checks(checkup_of(FAMILIES["decoder"]), ["finite", "batch"], 0.0, lambda *done: told.append(done))
    assert [(each.name, each.verdict) for each in found] == [("finite", "not applicable"), ("batch", "not applicable")]
    assert "--seconds" in found[0].message and told == [(1, 2), (2, 2)]
