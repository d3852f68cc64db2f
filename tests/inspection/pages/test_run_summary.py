import math
from dataclasses import replace

import pytest

from transom.config.recipe import Recipe
from transom.inspection.pages.model_card import render_model_card
from transom.inspection.pages.report import render_report
from transom.inspection.pages.run_summary import RunSummary, summarize_run
from transom.tasks.image_classification.schema import ImageRecipe
from transom.tasks.language.schema import LanguageRecipe
from transom.tasks.translation.schema import TranslationRecipe

GENERATED = {"generate": {"kind": "copy", "n_train": 100, "n_valid": 10, "n_test": 10}}


def test_the_kept_validation_is_the_last_that_was_best(run: RunSummary) -> None:
    assert run.best_validation is not None and run.best_validation["step"] == 5000
    assert run.samples == run.best_validation["samples"]
    assert (run.n_steps, len(run.validations)) == (6000, 12)


def test_series_hold_one_kind_and_show_gaps(run: RunSummary) -> None:
    norms = dict(run.series("train", "grad_norm"))
    assert len(norms) == 600 and [step for step, norm in norms.items() if math.isnan(norm)] == [1240]
    assert [step for step, _ in run.series("validation", "bleu")] == list(range(500, 6001, 500))
    assert run.series("train", "no such field") == []


def test_medians_leave_out_what_is_not_finite(run: RunSummary) -> None:
    lines = [{"step": step, "kind": "train", "matmul_utilization": share} for step, share in enumerate([0.1, None, 0.3, 0.2])]
    assert replace(run, metrics=lines).matmul_utilization == pytest.approx(0.2)
    assert replace(run, metrics=lines).throughput is None


def test_a_run_before_its_first_validation(run: RunSummary) -> None:
    bare = replace(run, metrics=[])
    assert (bare.n_steps, bare.best_validation, bare.samples, bare.validations) == (0, None, (), [])


def test_facts_are_gathered_from_what_the_run_told(run: RunSummary) -> None:
    known = {
        "data": {"problems": [], "train": {"pairs": 7}},
        "parameters": 1234,
        "active_parameters": 1200,
        "precision": "bf16: 4.1x faster here",
        "threads": "2 threads: the cores of this process",
        "processes": "",
        "peak_flops": 4.12e11,
        "bandwidth": 2.1e10,
        "torch": "2.13.0",
    }
    told = summarize_run("en-de", run.recipe, known, run.metrics, 99.0)
    assert (told.name, told.n_parameters, told.seconds, told.data) == ("en-de", 1234, 99.0, known["data"])
    assert told.machine_notes == (
        "bf16: 4.1x faster here",
        "2 threads: the cores of this process",
        "measured peak: matmul 412 GFLOP/s, memory 21 GB/s",
        "torch 2.13.0",
    )
    assert "measured peak: matmul 412 GFLOP/s" in render_report(told)


def kept(loss: float | None, **fields: object) -> list[dict[str, object]]:
    """Write the record of one validation, whose weights were kept."""
    return [{"step": 1, "kind": "validation", "best": True, "seconds": 1.0, "loss": loss, **fields}]


@pytest.mark.parametrize(
    ("recipe", "n", "noun"),
    [
        (ImageRecipe(data={"train": {"images": "x"}}, model={"classes": list("abcdef")}), 6, "classes"),  # type: ignore[arg-type]
        (LanguageRecipe(data={"train": {"files": "x"}}, model={"vocab_size": 300}), 300, "tokens"),  # type: ignore[arg-type]
        (TranslationRecipe(data=GENERATED, model={"source_vocab_size": 40, "target_vocab_size": 40}), 40, "tokens"),  # type: ignore[arg-type]
    ],
)
def test_a_model_that_is_worse_than_guessing_is_a_problem(run: RunSummary, recipe: Recipe, n: int, noun: str) -> None:
    """The report and the card of such a run name it, and say nowhere that there is no problem."""
    sound = replace(run, recipe=recipe, data={"problems": [], "train": 300}, alignments=(), test_scores=())
    worse = replace(sound, metrics=kept(math.log(n) + 0.01))
    loss = f"{math.log(n) + 0.01:.2f}"
    found = f"the validation loss of the best weights is {loss} nats, worse than random: a uniform distribution over {n} {noun}"
    assert len(worse.problems) == 1 and worse.problems[0].startswith(f"{found} has ln {n} = {math.log(n):.2f}; ")
    page, text = render_report(worse), render_model_card(worse)
    assert f"T{found[1:]}" in page and f"- warning: {found}" in text
    assert "No problem was found" not in page
    better = replace(sound, metrics=kept(math.log(n) - 0.01))
    assert (
        better.problems == []
        and "No problem was found in the data" in render_report(better)
        and "look at this" not in render_model_card(better)
    )
    (broken,) = replace(sound, metrics=kept(None)).problems
    assert "is not a number" in broken and "No problem was found" not in render_report(replace(sound, metrics=kept(None)))


def test_which_weights_were_kept_is_told(run: RunSummary) -> None:
    told = replace(run, metrics=kept(1.5, weights="raw", raw_loss=1.5, averaged_loss=1.62))
    assert told.best_weights_note == "raw weights (the averaged weights have loss 1.6200)"
    assert "raw weights (the averaged weights have loss 1.6200)" in render_report(told)
    assert "They are the raw weights (the averaged weights have loss 1.6200)." in render_model_card(told)
    assert (
        replace(run, metrics=kept(1.5, weights="averaged", raw_loss=1.62)).best_weights_note
        == "averaged weights (the raw weights have loss 1.6200)"
    )
    assert replace(run, metrics=kept(1.5, weights="raw", raw_loss=1.5)).best_weights_note == "raw weights"
    assert run.best_weights_note is None and "raw weights" not in render_report(run) + render_model_card(run)


def test_a_loss_worse_than_the_baseline_and_weights_better_by_another_metric_are_said(run: RunSummary) -> None:
    baseline = [{"key": "loss", "value": 1.79, "predictor": "always answering the token frequencies"}]
    records = [
        {"kind": "validation", "step": 100, "loss": 2.456, "bleu": 10.0, "best": True},
        {"kind": "validation", "step": 200, "loss": 2.5, "bleu": 12.5, "best": False},
    ]
    bad = replace(run, metrics=records, data={"problems": [], "baseline": baseline})
    assert bad.problems == [
        "validation loss 2.46 is worse than always answering the token frequencies, 1.79; train longer, change training.learning_rate, or"
        " check the data",
        "the validation bleu of step 200 is better (12.50) than that of the saved weights (10.00, step 100), which have the best loss; set"
        " training.best_checkpoint_metric = 'bleu' to save the others",
    ]
    fine = [{**records[0], "loss": 1.7}, {**records[1], "bleu": 10.4}]
    assert replace(bad, metrics=fine).problems == []
