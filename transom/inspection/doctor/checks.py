"""The list of all checks, and the function that runs them."""

import time
from collections.abc import Callable, Iterator, Sequence

from transom.config.suggestions import suggest
from transom.decoding.inference import ProgressCallback, eval_mode, ignore_progress
from transom.errors import ConfigError
from transom.inspection.doctor import activity, decoding, learning, numerics, speed, structure
from transom.inspection.doctor.checkup import Checkup
from transom.inspection.doctor.finding import Finding, not_applicable

Check = Callable[[Checkup], Finding]

CHECKS: dict[str, Check] = {
    "finite": numerics.finite,
    "causality": structure.causality,
    "packing": structure.packing,
    "padding": structure.padding,
    "batch": structure.batch,
    "cache": decoding.cache,
    "decoder": decoding.decoder,
    "dtype": numerics.dtype,
    "fp16-range": numerics.fp16_range,
    "certificates": numerics.certificates,
    "loss": learning.loss,
    "training": learning.training,
    "generalization": learning.generalization,
    "calibration": learning.calibration,
    "dead-heads": activity.dead_heads,
    "attention": activity.attention,
    "neurons": activity.neurons,
    "experts": activity.experts,
    "embeddings": activity.embeddings,
    "speed": speed.speed,
}
"""Every check by name, in the order in which they run."""


def select_checks(names: Sequence[str] | None) -> list[str]:
    """Return the names of the checks to run, in order.

    Args:
        names: wanted checks; None for all.

    Raises:
        ConfigError: there is no check of a name.
    """
    for name in names or ():
        if name not in CHECKS:
            raise ConfigError(f"checks: expected {', '.join(CHECKS)}, found {name!r}; {suggest(name, list(CHECKS))}")
    return [name for name in CHECKS if names is None or name in names]


def run_checks(
    checkup: Checkup, names: Sequence[str] | None = None, seconds: float = 20.0, notify: ProgressCallback = ignore_progress
) -> list[Finding]:
    """Run checks until the time is up; a check that has started is finished.

    Args:
        checkup: the model with its data and metrics.
        names: names of the checks; None for all.
        seconds: time limit. Checks that have not started by then are left out.
        notify: called with the number of checks done and of all.

    Raises:
        ConfigError: there is no check of a name.
    """
    chosen = select_checks(names)
    with eval_mode(checkup.model):
        return list(_run(checkup, chosen, time.perf_counter() + seconds, notify))


def _run(checkup: Checkup, chosen: Sequence[str], end: float, notify: ProgressCallback) -> Iterator[Finding]:
    for number, name in enumerate(chosen, 1):
        start = time.perf_counter()
        finding = CHECKS[name](checkup) if start < end else not_applicable("the time limit was reached; raise --seconds")
        yield finding._replace(name=name, seconds=time.perf_counter() - start)
        notify(number, len(chosen))
