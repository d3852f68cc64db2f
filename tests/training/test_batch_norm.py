"""Running statistics in a run: of steps that were made, saved, and gone on with exactly."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.test_router_losses import LOSS, TRAINING, stepped, translator
from tests.training.test_train_loop import MODEL, die_and_end_the_same, kill_at, recipe, sit, traces
from tests.training.test_train_step import SOURCES, TARGETS, N
from transom.checkpoints.run_files import WEIGHTS
from transom.checkpoints.tensors import read_tensors
from transom.data.pairs.loader import translation_batch
from transom.layers.norm import BatchNorm
from transom.models.base import Network
from transom.models.build import build_model
from transom.training.events import CheckpointSaved, StepFinished
from transom.training.objectives.objective import CrossEntropy
from transom.training.optimizer import build_optimizer
from transom.training.train_step import TrainStep


def normed(feed_forward: Any = "relu") -> Network:
    """Build a translator with batch norms, in training."""
    config = translator(kind="relu").config
    torch.manual_seed(1)
    return build_model(type(config).model_validate(config.model_dump() | {"norm": "batchnorm", "feed_forward": feed_forward})).double()


def statistics(model: Network) -> list[torch.Tensor]:
    return [x.clone() for module in model.modules() if isinstance(module, BatchNorm) for x in (module.mean, module.variance)]


def test_the_pass_that_only_counts_for_a_balance_moves_nothing() -> None:
    balanced, free = (stepped(normed(LOSS | {"load_balancing": balance}), 4)[0] for balance in (LOSS["load_balancing"], "none"))
    assert all(torch.equal(a, b) for a, b in zip(statistics(balanced), statistics(free), strict=True))


def test_a_skipped_step_moves_no_statistics() -> None:
    model = normed()
    train_step = TrainStep(
        model, build_optimizer(model, TRAINING.optimizer), TRAINING, torch.float32, CrossEntropy(TRAINING.label_smoothing)
    )
    batch = translation_batch(SOURCES, TARGETS, range(N))
    train_step.step([batch], 0.01)
    before = statistics(model)
    with torch.no_grad():
        kept = model.unembedding.weight[5].clone()
        model.unembedding.weight[5] = float("nan")
    assert train_step.step([batch], 0.01).skipped
    with torch.no_grad():
        model.unembedding.weight[5] = kept
    assert all(torch.equal(a, b) for a, b in zip(before, statistics(model), strict=True))
    assert not train_step.step([batch], 0.01).skipped
    assert not any(torch.equal(a, b) for a, b in zip(before, statistics(model), strict=True))


@pytest.mark.long
@pytest.mark.parametrize("average", ["ema", "none"])
def test_a_killed_run_goes_on_with_its_statistics(tmp_path: Path, average: str) -> None:
    fields = {"model": {**MODEL, "norm": "batchnorm"}, "average": average, "validate_bleu": 0}
    die_and_end_the_same(partial(sit, **fields), tmp_path, [kill_at(4, CheckpointSaved), kill_at(8, StepFinished)])
    name = "decoder.blocks.0.cross_residual.norm.mean"
    assert traces(tmp_path / "alone")[0][f"model/{name}"].any() and read_tensors(tmp_path / "alone" / WEIGHTS)[name].any()


def test_processes_do_not_share_statistics_and_that_is_said() -> None:
    with pytest.raises(ValueError, match=r"statistics in one process: expected no \[parallel\] table, found 2 processes; change"):
        recipe({**MODEL, "norm": "batchnorm"}, parallel={"data": 2})
