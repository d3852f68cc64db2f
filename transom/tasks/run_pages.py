"""Writes the result, the report ``report.html`` and the model card ``README.md`` of a finished run."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import torch

from transom.checkpoints.metrics_log import replace_non_finite
from transom.checkpoints.run_files import CARD, REPORT, RESULT
from transom.decoding.predictors.class_metrics import ClassificationMetrics
from transom.decoding.predictors.multi_label import MultiLabelMetrics
from transom.decoding.predictors.results import Alignment
from transom.files.atomic_io import FORMAT_VERSION, json_bytes
from transom.inspection.pages.model_card import render_model_card
from transom.inspection.pages.report import render_report
from transom.inspection.pages.run_summary import summarize_run
from transom.inspection.sample_attention import NoAttention, PatchAttention, TextAttention, patch_attention, text_attention
from transom.tasks.run_data import validation_batches
from transom.training.events import TrainingFinished
from transom.training.metrics_window import read_metrics_history
from transom.training.setup import TrainingSetup

MAX_ALIGNMENTS = 2
"""Maximum number of validation translations whose alignment with the source is shown in the report."""


def write_run_pages(setup: TrainingSetup, finished: TrainingFinished) -> list[str]:
    """Write the result, the report and the model card of a finished run.

    Args:
        setup: the setup of the run, whose ``eval_model`` receives the saved weights.
        finished: the last event of the run.

    Returns:
        Warnings about the training run, one sentence each.
    """
    folder, name = setup.folder, setup.folder.path.resolve().name
    summary = summarize_run(name, setup.recipe, setup.facts, read_metrics_history(setup.folder.metrics), finished.seconds)
    setup.folder.load_weights(setup.eval_model)
    whole = replace(
        summary,
        alignments=_alignments(setup, summary.samples),
        classification=_classification_metrics(setup),
        attention=_attention(setup),
    )
    folder.write(RESULT, json_bytes({"format_version": FORMAT_VERSION, **_result(setup, finished, whole.problems)}))
    folder.write(REPORT, render_report(whole, getattr(setup.task, "report_sections", ())).encode())
    folder.write(CARD, render_model_card(whole).encode())
    return whole.problems


def _result(setup: TrainingSetup, finished: TrainingFinished, problems: Sequence[str]) -> dict[str, Any]:
    """Return the result of a run as JSON values: its end, the metrics of the saved weights and of a trivial predictor, and problems."""
    result = {
        "step": finished.step,
        "reason": finished.reason,
        "seconds": finished.seconds,
        "best": dict(finished.best),
        "baseline": setup.facts["data"].get("baseline", []),
        "problems": list(problems),
    }
    return dict(replace_non_finite(result))


def _alignments(setup: TrainingSetup, samples: Sequence[Mapping[str, Any]]) -> list[Alignment]:
    """Align some of the validation samples, if the task supports it."""
    align = getattr(setup.task, "alignments", None)
    return [] if align is None else list(islice(align(setup.eval_model, samples), MAX_ALIGNMENTS))


def _attention(setup: TrainingSetup) -> TextAttention | PatchAttention | NoAttention | None:
    """Trace the attention of the saved weights over one sample of the validation data; None if a plugin's task has no such data."""
    task, model = setup.task, setup.eval_model
    if (sample := getattr(task, "sample_picture", None)) is not None:
        batch, picture = sample()
        return patch_attention(model, batch.to(model.device), picture)
    if not hasattr(task, "valid_batches") or not hasattr(task, "tokenizers"):
        return None
    return text_attention(model, validation_batches(task), task.tokenizers)


def _classification_metrics(setup: TrainingSetup) -> ClassificationMetrics | MultiLabelMetrics | None:
    """Classify all validation data with the saved weights, if the task supports it."""
    classify = getattr(setup.task, "classification_metrics", None)
    if classify is None:
        return None
    dtype = setup.precision.dtype
    metrics: ClassificationMetrics | MultiLabelMetrics = classify(
        setup.eval_model, torch.autocast(setup.model.device.type, dtype, enabled=dtype != torch.float32)
    )
    return metrics
