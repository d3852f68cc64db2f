"""The record of a run: the schema of ``metrics.jsonl``, and sums between two of its lines."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from transom.checkpoints.metrics import Metrics
from transom.errors import CheckpointError
from transom.files.checked import explain
from transom.training.step import StepResult


class _Record(BaseModel):
    """A line of ``metrics.jsonl``; every field without a name here is a number, or null where it was not finite."""

    model_config = ConfigDict(strict=True, extra="allow")
    __pydantic_extra__: dict[str, int | float | None]

    step: Annotated[int, Field(ge=0)]


class _Training(_Record):
    kind: Literal["train"]
    loss: float | None


class _Validation(_Record):
    kind: Literal["validation"]
    loss: float | None
    seconds: float
    best: bool
    samples: list[dict[str, str | int | float | None]]
    weights: Literal["raw", "averaged"] | None = None


class _Skipped(_Record):
    kind: Literal["skipped"]
    places: list[str]


_LINE: TypeAdapter[Any] = TypeAdapter(Annotated[_Training | _Validation | _Skipped, Field(discriminator="kind")])


def read_history(metrics: Metrics) -> list[dict[str, Any]]:
    """Read the records of a run.

    Raises:
        CheckpointError: naming the first line that is not what a run writes.
    """
    records = metrics.read()
    for number, record in enumerate(records, start=1):
        try:
            _LINE.validate_python(record)
        except ValidationError as error:
            raise CheckpointError(f"{metrics.path}:{number}: {explain(error)}; remove this line to go on") from error
    return records


_PASSED = ("routed_tokens", "routed_chosen", "routed_alone")
"""Sums of ``training.events.Passed``."""

_SUMS = ("steps", "skipped", "seconds", "flops", "n_target_tokens", "loss", "nll", "grad_norm")
"""Sums of every run's window."""

_LOADS = ("expert_load", "dropped")
"""Sums of ``training.events.Load``."""


def complete(sums: Mapping[str, float]) -> bool:
    """Return whether ``sums`` are those of a window: none yet, or all of them, with those of routed blocks where there are any."""
    extra = sums.keys() - {*_SUMS}
    parts = [{*part} for part in (_LOADS, _PASSED) if part[0] in extra]
    return not sums or (sums.keys() >= {*_SUMS} and extra == set().union(*parts) and sums["steps"] >= 1)


class Window:
    """Sums over the steps since the last line, so that a line holds means over true target tokens, never means of means."""

    def __init__(self, sums: Mapping[str, float]) -> None:
        """Go on from ``sums``, which a checkpoint keeps."""
        self.sums = dict(sums)

    def add(self, result: StepResult, seconds: float) -> None:
        """Take in one step that lasted ``seconds``."""
        taken = not result.skipped
        gains = {
            "steps": 1,
            "skipped": not taken,
            "seconds": seconds,
            "flops": result.flops,
            "n_target_tokens": result.n_target_tokens * taken,
            "loss": result.loss if taken else 0.0,
            "nll": result.nll if taken else 0.0,
            "grad_norm": result.grad_norm if taken else 0.0,
        }
        if result.load is not None:
            gains |= {"expert_load": result.load.most * taken, "dropped": result.load.dropped * taken}
        if result.passed is not None:
            gains |= {name: count * taken for name, count in zip(_PASSED, result.passed, strict=True)}
        self.sums = {name: self.sums.get(name, 0.0) + gain for name, gain in gains.items()}

    def close(self, peak: float) -> dict[str, float]:
        """Return the line's figures and start anew; ``peak`` is the machine's measured FLOP/s."""
        s, self.sums = self.sums, {}
        n_tokens, taken = max(s["n_target_tokens"], 1), max(s["steps"] - s["skipped"], 1)
        experts = {"expert_load": s["expert_load"] / taken, "dropped": s["dropped"]} if "expert_load" in s else {}
        n_passing, chosen, alone = (s.get(name, 0.0) for name in _PASSED)
        depths = {"depth_share": chosen / max(n_passing, 1), "depth_alone": alone / max(n_passing, 1)} if _PASSED[0] in s else {}
        return {
            "loss": s["loss"] / n_tokens,
            "nll": s["nll"] / n_tokens,
            "grad_norm": s["grad_norm"] / taken,
            "target_tokens_per_second": s["n_target_tokens"] / s["seconds"],
            "peak_share": s["flops"] / s["seconds"] / peak,
            "skipped": s["skipped"],
            **experts,
            **depths,
        }
