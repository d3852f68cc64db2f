"""Checks of what was learned: the loss against trivial predictors, the course of training, generalization, calibration."""

import math
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn

from transom.data.batch import Batch, ContrastiveBatch, LanguageBatch, MultiLabelTextBatch, TranslationBatch
from transom.decoding.predictors.class_metrics import calibration_bins, expected_calibration_error
from transom.inspection.doctor.baselines import bigram_loss, collect_labels, label_set_losses, unigram_loss
from transom.inspection.doctor.checkup import Checkup
from transom.inspection.doctor.finding import Finding, not_applicable
from transom.training.objectives.multi_label import BinaryCrossEntropy
from transom.training.objectives.objective import CrossEntropy, forward_pass

MAX_LABELS = 20_000
"""Labels of the validation data that are scored."""

FEW_STEPS = 100
"""Training steps below which a poor loss is no problem yet."""

SLACK = 0.02
"""Fraction of a loss within which two losses count as equal."""


def scored_batches(checkup: Checkup) -> Sequence[Batch]:
    """Return the validation batches that are scored: all of them, or every n-th of many."""
    n = sum(batch.n_target_tokens for batch in checkup.batches)
    return checkup.batches[:: max(math.ceil(n / MAX_LABELS), 1)]


@torch.no_grad()
def measured_loss(checkup: Checkup) -> float:
    """Return the mean negative log-likelihood per label of the scored batches, in nats."""
    batches, total = scored_batches(checkup), 0.0
    for batch in (batch.to(checkup.model.device) for batch in batches):
        objective = BinaryCrossEntropy(0.0) if isinstance(batch, MultiLabelTextBatch) else CrossEntropy(0.0)
        total += float(objective.loss(forward_pass(checkup.model, batch)).nll)
    return total / sum(batch.n_target_tokens for batch in batches)


def reference_losses(checkup: Checkup) -> dict[str, float]:
    """Return the losses of trivial predictors on the scored batches, from the weakest to the strongest."""
    batches = scored_batches(checkup)
    if isinstance(batches[0], MultiLabelTextBatch):
        half, frequencies = label_set_losses(batches)
        return {"probabilities 1/2": half, "label frequencies": frequencies}
    if isinstance(batches[0], ContrastiveBatch):
        sizes = [batch.n_target_tokens for batch in batches]
        return {"a uniform choice": sum(n * math.log(n) for n in sizes) / sum(sizes)}
    n, tags = checkup.model.unembedding.weight.shape[0], checkup.model.config.kind == "token-tagger"
    found = collect_labels(batches, tags)
    of_text = hasattr(batches[0], "decoder_input") or (not tags and found.labels.numel() and not hasattr(checkup.model.config, "classes"))
    losses = {f"uniform (ln {n:,})": math.log(n), "token frequencies" if of_text else "class frequencies": unigram_loss(found.labels, n)}
    if found.contexts is not None:
        losses["a tag per token" if tags else "bigrams"] = bigram_loss(found.labels, found.contexts, n)
    return losses


def loss(checkup: Checkup) -> Finding:
    """Compare the validation loss with those of trivial predictors, and with the one that training recorded."""
    if not checkup.batches:
        return not_applicable(checkup.no_data)
    value, references = measured_loss(checkup), reference_losses(checkup)
    shown = ", ".join(f"{name} {other:.2f}" for name, other in references.items())
    message = f"validation loss {value:.3g} nats; {shown}"
    weakest = next(iter(references.values()))
    worse = [name for name, other in references.items() if value > other * (1 + SLACK)]
    early = bool(checkup.metrics) and checkup.n_steps < FEW_STEPS
    if not math.isfinite(value):
        return Finding(
            "problem", f"validation loss {value}", "lower training.learning_rate, and load an earlier checkpoint", value, weakest
        )
    recorded = _recorded_loss(checkup)
    if recorded is not None and abs(value - recorded) > 0.05 * recorded + 0.05 and len(scored_batches(checkup)) == len(checkup.batches):
        advice = "the weights, tokenizer or data have changed since training: restore them from the run's checkpoints"
        return Finding(
            "problem", f"validation loss {value:.3g} nats; training recorded {recorded:.3g} for these weights", advice, value, recorded
        )
    if worse and worse[0] == next(iter(references)) and not early:
        advice = "worse than guessing: check labels and loss mask, lower training.learning_rate, train longer"
        return Finding("problem" if checkup.metrics else "warning", message, advice, value, weakest)
    if worse and not early:
        advice = f"worse than {worse[-1]}: train longer, raise training.learning_rate or the size of the model"
        return Finding("warning", message, advice, value, references[worse[-1]])
    if value < 0.02 and isinstance(checkup.batches[0], LanguageBatch | TranslationBatch) and len(references) == 3:
        advice = "almost nothing is left to predict: look for validation texts in the training data, and for labels in the input"
        return Finding("warning", message, advice, value, 0.02)
    note = f" after {checkup.n_steps:,} steps" if early else ""
    return Finding("ok", message + note, "train longer" if worse else "", value, weakest)


def _records(checkup: Checkup, kind: str) -> list[Mapping[str, Any]]:
    return [record for record in checkup.metrics if record.get("kind") == kind]


def _recorded_loss(checkup: Checkup) -> float | None:
    """Return the loss of the best validation, whose weights were saved; None if there is none."""
    found = [record["loss"] for record in _records(checkup, "validation") if record["best"]]
    return found[-1] if found else None


def training(checkup: Checkup) -> Finding:
    """Look at the training loss: not a number, diverging, still falling, or flat; and at skipped steps."""
    records = _records(checkup, "train")
    if len(records) < 4:
        return not_applicable("the run has fewer than four lines of training metrics")
    losses = [math.nan if record["loss"] is None else float(record["loss"]) for record in records]
    quarter = max(len(losses) // 4, 1)
    last, before, best = mean(losses[-quarter:]), mean(losses[-2 * quarter : -quarter]), min(_means(losses, quarter))
    skipped = sum(float(record.get("skipped") or 0) for record in records) / max(checkup.n_steps, 1)
    rates = [float(record["learning_rate"]) for record in records if record.get("learning_rate")]
    end_rate = rates[-1] / max(rates) if rates else 0.0
    message = f"training loss {losses[0]:.3g} at first, {last:.3g} in the last quarter (best {best:.3g}) after {checkup.n_steps:,} steps"
    if rates:
        message += f"; the learning rate ended at {end_rate:.0%} of its peak"
    if not math.isfinite(last):
        return Finding("problem", message, "lower training.learning_rate, and continue from an earlier checkpoint", last, best)
    if last > best * 1.2 + 0.05 and last > losses[0] * 0.8:
        return Finding(
            "problem", message, "training diverged: lower training.learning_rate or training.max_grad_norm, warm up longer", last, best
        )
    if skipped > 0.05:
        return Finding(
            "warning",
            f"{skipped:.0%} of the steps were skipped for gradients that are not finite (bound 5%)",
            "lower the rate",
            skipped,
            0.05,
        )
    if last > best * (1 + SLACK) + 0.01 and end_rate > 0.5:
        return Finding("warning", message, "the loss rises again: lower training.learning_rate", last, best)
    if end_rate > 0.5 and abs(before - last) < SLACK * abs(last) and checkup.n_steps >= FEW_STEPS:
        return Finding("warning", message, "the loss is flat at a high rate: use a schedule that decays, such as cosine", last, before)
    return Finding("ok", message, "still falling: train longer" if last < before * (1 - 2 * SLACK) - 0.01 else "", last, best)


def _means(values: Sequence[float], width: int) -> list[float]:
    """Return the means of all windows of this width, without those that are not a number."""
    found = [mean(values[i : i + width]) for i in range(len(values) - width + 1)]
    return [value for value in found if math.isfinite(value)] or [math.nan]


def generalization(checkup: Checkup) -> Finding:
    """Compare the last validation with the best one, and with the training loss at that time."""
    validations, records = _records(checkup, "validation"), _records(checkup, "train")
    if len(validations) < 2 or not records:
        return not_applicable("the run has fewer than two validations")
    losses = [math.nan if record["loss"] is None else float(record["loss"]) for record in validations]
    best = min((value for value in losses if math.isfinite(value)), default=math.nan)
    last, step = losses[-1], validations[losses.index(best)]["step"] if math.isfinite(best) else 0
    fit = mean(float(value) for record in records[-3:] if (value := record.get("nll", record["loss"])) is not None) if records else math.nan
    message = f"validation loss {last:.3g} at the end, {best:.3g} at best (step {step:,}), training {fit:.3g}"
    if not math.isfinite(last):
        return Finding("problem", message, "lower training.learning_rate", last, best)
    if last > best * (1 + SLACK) and fit < best:
        advice = f"overfitting after step {step:,}: stop there (training.patience), raise dropout or label_smoothing, or use more data"
        return Finding("warning", message, advice, last, best * (1 + SLACK))
    if fit < best / 2 and best - fit > 0.3:
        return Finding(
            "warning", message, "the model fits the training data far better: more data, dropout, or a smaller model", fit, best / 2
        )
    advice = "the last validation is the best one: training longer may help" if losses.index(best) == len(losses) - 1 else ""
    return Finding("ok", message, advice, last, best * (1 + SLACK))


MIN_CALIBRATION = 50
"""Labels without which calibration is not measured."""

MAX_CALIBRATION_ERROR = 0.1
"""Expected calibration error above which there is a warning, beside its noise."""


@torch.no_grad()
def calibration(checkup: Checkup) -> Finding:
    """Compare the confidence of a classifier with its accuracy, and find the temperature that calibrates it best (Guo et al. 2017)."""
    if not getattr(checkup.model.config, "classes", ()):
        return not_applicable("the model is no classifier")
    if not checkup.batches:
        return not_applicable(checkup.no_data)
    if isinstance(checkup.batches[0], MultiLabelTextBatch):
        return not_applicable("texts have several labels each; their thresholds are set by validation")
    logits, labels = _class_logits(checkup)
    if (n := len(labels)) < MIN_CALIBRATION:
        return not_applicable(f"the validation data have {n} labels; {MIN_CALIBRATION} are needed")
    p, found = logits.softmax(-1).max(-1)
    bins = calibration_bins(p.double().numpy(), (found == labels).numpy())
    error = expected_calibration_error(bins)
    noise = sum(math.sqrt(each.n * max(each.confidence * (1 - each.confidence), 0.0)) for each in bins) / n
    bound = MAX_CALIBRATION_ERROR + noise
    message = f"confidence {float(p.mean()):.1%}, accuracy {float((found == labels).float().mean()):.1%} on {n:,} labels; expected"
    message += f" calibration error {error:.3f} (bound {bound:.3f}, of which noise {noise:.3f})"
    if error <= bound:
        return Finding("ok", message, "", error, bound)
    temperatures = torch.logspace(-1.5, 1.5, 61).tolist()
    best = min(temperatures, key=lambda t: float(nn.functional.cross_entropy(logits / t, labels)))
    over = "over" if float(p.mean()) > float((found == labels).float().mean()) else "under"
    return Finding("warning", message, f"{over}confident: divide logits by {best:.2g}, or use label smoothing or more data", error, bound)


def _class_logits(checkup: Checkup) -> tuple[Tensor, Tensor]:
    """Return logits and labels of the scored batches, on the CPU."""
    logits, labels = list[Tensor](), list[Tensor]()
    for batch in (batch.to(checkup.model.device) for batch in scored_batches(checkup)):
        logits.append(checkup.model(batch)[batch.loss_mask].float().cpu())
        labels.append(batch.labels[batch.loss_mask].cpu())
    return torch.cat(logits), torch.cat(labels)
