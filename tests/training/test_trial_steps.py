"""Steps of a small model on several processes of this machine against one process, and the rank that is named if one fails."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.tiers import tiers
from transom.cli.plan import load_planned
from transom.config.parallel import ParallelConfig
from transom.config.recipe import parse_model_config
from transom.config.training import SgdConfig, TextTrainingConfig
from transom.data.batch import Batch
from transom.errors import ConfigError
from transom.planning.layout import layout_problems, parse_layout
from transom.planning.shrink import shrink
from transom.training.trial_steps import TrialStep, draw_micro_batches, take_steps, try_steps

TINY = parse_model_config({"kind": "decoder", "vocab_size": 40, "d_model": 16, "n_heads": 4, "n_layers": 2, "d_ff": 24, "max_seq_len": 20})
TRAINING = TextTrainingConfig(optimizer=SgdConfig())
SHARDED = ParallelConfig(shard=2, tensor=2)

RECIPES = {
    "translation": "data=2,shard=2,tensor=4,pipeline=4",
    "multi30k-en-de": "data=8,tensor=4,pipeline=2",
    "python-stdlib": "data=4,tensor=4,context=2,pipeline=2",
    "text-masked": "shard=4,tensor=4,context=2,data=2",
    "text-classes": "data=4,shard=4,pipeline=2,context=2",
    "cifar10-vit": "data=16,context=2,pipeline=2",
}
"""A layout of 64 processes for recipes of each family."""


@pytest.mark.long
def test_four_processes_take_the_steps_of_one() -> None:
    trial = try_steps(TINY, TRAINING, SHARDED)
    assert trial.difference <= 1e-10 and len(trial.steps) == len(trial.expected) == 2
    assert trial.steps[0].loss != trial.steps[1].loss and trial.steps[0].grad_norm > 0
    value = trial.to_json()
    assert (value["mesh"], value["processes"]) == ("shard=2,tensor=2", 4) and value["losses"] == [step.loss for step in trial.steps]


def take_broken_steps(rank: int, config: Any, training: Any, layout: ParallelConfig, n_parts: int, n: int) -> Any:
    """Fail on the last rank, as a kernel that does not support the sizes of its part."""
    if rank == 3:
        raise RuntimeError("a kernel without these sizes")
    return take_steps(rank, config, training, layout, n_parts, n)


def take_other_steps(rank: int, config: Any, training: Any, layout: ParallelConfig, n_parts: int, n: int) -> tuple[TrialStep, ...]:
    """Return a wrong loss on rank 2, as a rank that adds up other tokens than it should."""
    return tuple(TrialStep(2.0 if rank == 2 else 1.0, 1.0) for _ in range(2))


@pytest.mark.long
def test_a_rank_that_fails_is_named() -> None:
    message = r"rank 3 \(shard 1, tensor 1\): expected 2 steps of a small model on shard=2,tensor=2, found RuntimeError: a kernel without"
    with pytest.raises(ConfigError, match=message):
        try_steps(TINY, TRAINING, SHARDED, take_broken_steps)


@pytest.mark.long
def test_a_rank_with_other_losses_is_named() -> None:
    with pytest.raises(ConfigError, match=r"rank 2 \(shard 1, tensor 0\): expected the steps of one process, with losses 1, 1, found 2, 2"):
        try_steps(TINY, TRAINING, SHARDED, take_other_steps)


@pytest.mark.long
def test_text_pairs_of_all_parts_are_joined_in_one_process() -> None:
    embedder = parse_model_config({**TINY.model_dump(include={"vocab_size", "d_model", "n_heads", "n_layers"}), "kind": "text-embedder"})
    trial = try_steps(embedder, TRAINING.model_copy(update={"grad_accum_steps": 2}), ParallelConfig(data=3))
    assert trial.difference <= 1e-10 and trial.micro_batches == 2


def test_parts_of_a_batch_have_their_own_samples_of_different_lengths() -> None:
    parts = draw_micro_batches(TINY, 3, 2, step=0)
    batches: Sequence[Batch] = [batch for part in parts for batch in part]
    samples = [sample for batch in batches for sample in batch.sample_ids]
    assert len(samples) == len(set(samples)) and len({batch.n_target_tokens for batch in batches}) > 3


@pytest.mark.parametrize("name", tiers(RECIPES, long=()))
def test_64_processes_take_the_steps_of_one(name: str) -> None:
    config, training, _ = load_planned(name, (), 1003)
    layout = parse_layout(RECIPES[name])
    assert layout.n_processes == 64 and not layout_problems(config, layout, training)
    assert try_steps(shrink(config, layout), training, layout).difference <= 1e-10
