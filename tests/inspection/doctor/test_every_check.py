"""The table of broken models has one for every check, which passes the same model before it is broken."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests.inspection.doctor import test_activity as activity
from tests.inspection.doctor import test_learning as learning
from tests.inspection.doctor import test_speed as speed
from tests.inspection.doctor import test_structure as structure
from tests.inspection.doctor.samples import FAMILIES, checkup_of, found_by
from transom.inspection.doctor.checks import CHECKS
from transom.inspection.doctor.checkup import Checkup


class Case(NamedTuple):
    """A healthy model, and what breaks it.

    Attributes:
        healthy: prepares the examination of the healthy model.
        damage: breaks the model or what it runs on, and prepares the examination of the result.
    """

    healthy: Callable[[], Checkup]
    damage: Callable[[Checkup, pytest.MonkeyPatch], Checkup]


def model(fields: dict[str, Any], damage: Callable[[Any], None]) -> Case:
    """Return a case whose weights or layers are changed."""

    def broken(healthy: Checkup, monkeypatch: pytest.MonkeyPatch) -> Checkup:
        damage(healthy.model)
        return checkup_of(healthy.model)

    return Case(lambda: checkup_of(fields), broken)


def code(fields: dict[str, Any], damage: Callable[[pytest.MonkeyPatch], None]) -> Case:
    """Return a case whose program is changed."""

    def broken(healthy: Checkup, monkeypatch: pytest.MonkeyPatch) -> Checkup:
        damage(monkeypatch)
        return checkup_of(healthy.model)

    return Case(lambda: checkup_of(fields), broken)


def course(healthy: str, broken: str) -> Case:
    """Return a case of two courses of a training."""
    first, second = (learning.COURSES[name][1] for name in (healthy, broken))
    decoder = FAMILIES["decoder"]
    return Case(lambda: checkup_of(decoder, metrics=first), lambda checkup, monkeypatch: checkup_of(decoder, metrics=second))


def as_recorded() -> Checkup:
    """Return a model whose loss is the one that its training recorded after a few steps."""
    value = learning.measured_loss(checkup_of(FAMILIES["decoder"]))
    return checkup_of(FAMILIES["decoder"], metrics=[{**learning.validated([value])[0], "step": 20}])


BIASED = {"attention": {"qkv_bias": True}}

BROKEN: dict[str, Case] = {
    **{name: model(fields, damage) for name, fields, damage in structure.BROKEN.values()},
    "cache": code(FAMILIES["decoder"], structure.forget_the_first_token),
    "decoder": code(FAMILIES["seq2seq"], structure.decode_with_other_weights),
    "certificates": code(FAMILIES["decoder"], structure.attend_without_mask),
    "loss": Case(as_recorded, lambda checkup, monkeypatch: learning.scaled("decoder", 30.0)),
    "training": course("falling", "diverged"),
    "generalization": course("general", "overfitted"),
    "calibration": Case(lambda: learning.labeled(0.8, 79), lambda checkup, monkeypatch: learning.labeled(0.99, 70)),
    **{name: model(fields | BIASED if "position" in fields else fields, damage) for name, fields, damage, _, _ in activity.BROKEN.values()},
    "speed": model(speed.WIDE, speed.repeat_blocks),
}
"""A broken model for each check; those of a check that has several are in the test of its room."""


def test_every_check_has_a_broken_model() -> None:
    assert set(BROKEN) == set(CHECKS)


@pytest.mark.parametrize("name", CHECKS)
def test_the_check_passes_the_healthy_model_and_catches_the_broken_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    structure.use_float32(monkeypatch)
    speed.count_time(monkeypatch)
    healthy = BROKEN[name].healthy()
    assert (found := found_by(name, healthy)).verdict == "ok", found
    found = found_by(name, BROKEN[name].damage(healthy, monkeypatch))
    assert found.verdict in ("warning", "problem") and found.advice, found
