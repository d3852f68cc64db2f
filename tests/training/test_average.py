"""Averages of weights against their definitions."""

import pytest
import torch
from torch import nn

from transom.config.training import CheckpointAverage, Ema, NoAverage
from transom.training.average import Averager


def test_none_gives_the_model_s_own_weights() -> None:
    model = nn.Linear(2, 2)
    averager = Averager(NoAverage(), model)
    averager.stepped()
    averager.checkpointed(1)
    assert all(torch.equal(averager.weights(1)[name], p) for name, p in model.named_parameters())
    assert not averager.ema and not averager.snapshots


def test_ema_is_its_recursion() -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 1.0)
    averager, expected = Averager(Ema(decay=0.75), model), 1.0
    for value in (3.0, -1.0, 2.0):
        nn.init.constant_(model.weight, value)
        averager.stepped()
        expected = 0.75 * expected + 0.25 * value
    assert averager.weights(3)["weight"].item() == pytest.approx(expected)


def test_checkpoints_are_averaged_over_the_last_ones() -> None:
    model = nn.Linear(1, 1, bias=False)
    averager = Averager(CheckpointAverage(last=3), model)
    nn.init.constant_(model.weight, 7.0)
    assert averager.weights(0)["weight"].item() == 7.0  # no checkpoint yet
    for step, value in ((10, 1.0), (20, 2.0), (30, 4.0), (40, 9.0)):
        nn.init.constant_(model.weight, value)
        averager.checkpointed(step)
    assert sorted(averager.snapshots) == [20, 30, 40]
    assert averager.weights(40)["weight"].item() == pytest.approx(5.0)


def test_between_checkpoints_the_present_weights_take_the_next_one_s_place() -> None:
    model = nn.Linear(1, 1, bias=False)
    averager = Averager(CheckpointAverage(last=3), model)
    for step, value in ((10, 1.0), (20, 2.0), (30, 4.0)):
        nn.init.constant_(model.weight, value)
        averager.checkpointed(step)
    nn.init.constant_(model.weight, 9.0)
    assert averager.weights(35)["weight"].item() == pytest.approx(5.0)
    assert sorted(averager.snapshots) == [10, 20, 30]  # looking keeps nothing
