"""Objectives: each task names its own, and a component from outside brings one that the step, the record and a resumed run know at once."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from tests.training.conftest import changed, sit
from tests.training.test_train_loop import die_and_end_the_same, kill_at
from tests.training.test_train_loop import recipe as translation
from tests.training.test_train_step import SOURCES, TARGETS, TRAINING, N, tiny
from transom.checkpoints.run_folder import RunFolder
from transom.config.recipe import Recipe
from transom.data.batch import Batch, translation_batch
from transom.layers.norm import LayerNorm
from transom.models.base import Network
from transom.parallel.processes.collectives import World
from transom.tasks.language.schema import LanguageRecipe
from transom.tasks.task import build_training_setup
from transom.training.events import Callback, CheckpointSaved, Event, StepFinished
from transom.training.objectives import auxiliary
from transom.training.objectives.early_exit import EarlyExitLoss
from transom.training.objectives.mixup import MixupCrossEntropy
from transom.training.objectives.objective import (
    N_UPDATES,
    AuxiliaryObjective,
    CrossEntropy,
    ForwardPass,
    Objective,
    RatioMetric,
    forward_pass,
)
from transom.training.objectives.r_drop import RDrop
from transom.training.optimizer import build_optimizer
from transom.training.train_step import TrainStep


class Shrinking(AuxiliaryObjective):
    """Half the mean square of what each layer norm reads, a loss that no recipe knows."""

    metrics: ClassVar[Mapping[str, RatioMetric]] = {"square": RatioMetric("square", N_UPDATES), "places": RatioMetric("places", None)}

    def __init__(self, model: Network, norms: Mapping[str, LayerNorm], world: World) -> None:
        self.sites = [f"{name}.x" for name in norms]
        self.calls: list[Any] = []

    def prepare(self, micro_batches: Sequence[Batch]) -> None:
        self.calls.append(len(micro_batches))
        self.n_micro_batches, self.square, self.places = len(micro_batches), 0.0, 0

    def loss(self, forward: ForwardPass) -> Tensor:
        assert set(self.sites) <= forward.activations.keys()
        loss = torch.stack([forward.activations[site][0].square().mean() / 2 for site in self.sites]).sum() / self.n_micro_batches
        self.square += loss.item()
        self.places += forward.batch.labels.numel()
        return loss

    def after_update(self, updated: bool) -> Mapping[str, float]:
        self.calls.append(updated)
        return {"square": self.square, "places": self.places}


@pytest.fixture
def brought(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let layer norms bring an objective."""
    monkeypatch.setitem(auxiliary.AUXILIARY_OBJECTIVES, LayerNorm, Shrinking)


@pytest.mark.usefixtures("brought")
def test_a_component_from_outside_adds_its_loss_to_the_step() -> None:
    model, batch = tiny(), translation_batch(SOURCES, TARGETS, range(N))
    train_step = TrainStep(
        model, build_optimizer(model, TRAINING.optimizer), TRAINING, torch.float32, CrossEntropy(TRAINING.label_smoothing)
    )
    (shrinking,) = train_step.auxiliary
    assert isinstance(shrinking, Shrinking) and len(shrinking.sites) == 5
    forward = forward_pass(model, batch, shrinking.sites)
    squares = torch.stack([x.square().mean() / 2 for site in shrinking.sites for x in forward.activations[site]]).sum()
    plain = CrossEntropy(0.1).loss(forward)
    gradients = torch.autograd.grad(plain.backward_loss / batch.n_target_tokens + squares, list(model.parameters()))
    result = train_step.step([batch], 0.01)
    assert result.grad_norm == pytest.approx(torch.cat([g.flatten() for g in gradients]).norm().item(), rel=1e-9)
    assert (result.loss, result.nll) == pytest.approx((plain.loss.item(), plain.nll.item()), rel=1e-12), (
        "what it adds is not reported as loss"
    )
    assert result.aux_metrics == {"square": pytest.approx(squares.item()), "places": batch.labels.numel()}
    assert shrinking.calls == [1, True]
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    assert train_step.step([batch, batch], 0.01).skipped and shrinking.calls == [1, True, 2, False]


@pytest.mark.long
@pytest.mark.usefixtures("brought")
def test_its_measurements_are_recorded_over_a_kill_too(tmp_path: Path) -> None:
    seen: list[Event] = []

    def result(out: Path, callback: Callback = lambda _: None) -> None:
        sit(translation(validate_bleu=0), out, callback, seen.append)

    die_and_end_the_same(result, tmp_path, [kill_at(3, CheckpointSaved), kill_at(8, StepFinished)])
    steps = [event.aux_metrics for event in seen if isinstance(event, StepFinished)][:12]
    lines = [line for line in RunFolder.open(tmp_path / "killed").metrics.read() if line["kind"] == "train"]
    for line, first, second in zip(lines, steps[::2], steps[1::2], strict=True):
        assert line["places"] == first["places"] + second["places"] > 0
        assert line["square"] == pytest.approx((first["square"] + second["square"]) / 2)


def named(recipe: Recipe, out: Path) -> Objective:
    """Set a run up and return the objective that its task names."""
    with RunFolder.create(out) as folder:
        parts = build_training_setup(recipe, Path(), folder)
    return parts.task.objective(parts.model)


@pytest.mark.parametrize(
    ("task", "training", "kind"),
    [
        ("masked", {}, CrossEntropy),
        ("classes", {}, CrossEntropy),
        ("classes", {"r_drop": 2.0}, RDrop),
        ("pairs", {}, CrossEntropy),
        ("languages", {"r_drop": 3.0}, RDrop),
        ("vision", {}, MixupCrossEntropy),
    ],
)
def test_each_task_names_its_objective(
    task: str, training: dict[str, Any], kind: type[CrossEntropy], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    objective = named(changed(request.getfixturevalue(task), label_smoothing=0.25, **training), tmp_path / "run")
    assert type(objective) is kind and objective.label_smoothing == 0.25
    assert objective.n_copies == (2 if kind is RDrop else 1)
    if isinstance(objective, RDrop):
        assert objective.alpha == training["r_drop"]


@pytest.mark.parametrize(
    ("fields", "kind", "n_copies"),
    [
        ({}, CrossEntropy, 1),
        ({"early_exit_loss": "linear"}, EarlyExitLoss, 1),
        ({"early_exit_loss": "uniform", "r_drop": 1.0}, EarlyExitLoss, 2),
    ],
)
def test_a_language_model_learns_early_exits_where_asked(
    fields: dict[str, Any], kind: type[Objective], n_copies: int, tmp_path: Path
) -> None:
    (tmp_path / "text.txt").write_text("\n".join(f"one two {n}" for n in range(60)))
    recipe = LanguageRecipe.model_validate(
        {
            "data": {"train": {"files": str(tmp_path / "text.txt"), "document": "line"}},
            "tokenizer": {"kind": "whitespace", "vocab_size": 40},
            "model": {"d_model": 8, "n_layers": 3, "n_heads": 2, "d_ff": 16, "max_seq_len": 16, "dropout": 0.1},
            "training": fields,
        }
    )
    objective = named(recipe, tmp_path / "run")
    assert type(objective) is kind and objective.n_copies == n_copies
    exits = ["decoder.blocks.0.resid_post", "decoder.blocks.1.resid_post"]
    assert list(objective.sites) == (exits if kind is EarlyExitLoss else [])
