"""Schema of ``metrics.jsonl``, and the sums over training steps from which each line of training metrics is computed."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from transom.checkpoints.metrics_log import MetricsLog
from transom.errors import CheckpointError
from transom.files.safe_read import describe_validation_error
from transom.training.objectives.objective import N_UPDATES, RatioMetric
from transom.training.train_step import StepResult

TIMED = frozenset(("seconds", "target_tokens_per_second", "matmul_utilization", "seconds_per_step", "peak_memory", "needed_memory"))
"""Metrics that depend on the machine and its load."""


class _Record(BaseModel):
    """A line of ``metrics.jsonl``. Fields that the schema does not name are metrics: numbers, or null for values that were not finite."""

    model_config = ConfigDict(strict=True, extra="allow")
    __pydantic_extra__: dict[str, int | float | None]

    step: Annotated[int, Field(ge=0)]


class _TrainRecord(_Record):
    kind: Literal["train"]
    loss: float | None


class _ValidationRecord(_Record):
    kind: Literal["validation"]
    loss: float | None
    seconds: float
    best: bool
    samples: list[dict[str, str | int | float | None]]
    weights: Literal["raw", "averaged"] | None = None


class _SkippedRecord(_Record):
    kind: Literal["skipped"]
    samples: list[str]


class _HalvedRecord(_Record):
    kind: Literal["halved"]
    rows: int
    n_splits: int


_ANY_RECORD: TypeAdapter[Any] = TypeAdapter(
    Annotated[_TrainRecord | _ValidationRecord | _SkippedRecord | _HalvedRecord, Field(discriminator="kind")]
)


def read_metrics_history(metrics: MetricsLog) -> list[dict[str, Any]]:
    """Read all lines of a run's ``metrics.jsonl``, each as a dictionary.

    Raises:
        CheckpointError: a line does not match the schema; the message gives the line number.
    """
    records = metrics.read()
    for number, record in enumerate(records, start=1):
        try:
            _ANY_RECORD.validate_python(record)
        except ValidationError as error:
            raise CheckpointError(f"{metrics.path}:{number}: {describe_validation_error(error)}; delete this line to continue") from error
    return records


WINDOW_SUMS = ("steps", "skipped", "seconds", "flops", "n_target_tokens", "loss", "nll", "grad_norm")
"""Names of the sums that every run keeps; auxiliary objectives add further sums."""

_METRIC_RATIOS = {
    "loss": RatioMetric("loss", "n_target_tokens"),
    "nll": RatioMetric("nll", "n_target_tokens"),
    "grad_norm": RatioMetric("grad_norm", N_UPDATES),
}
"""Metrics of every run, as ratios of sums."""


class MetricsWindow:
    """Sums over the steps since the last line of training metrics, so that a line reports means over tokens, not means of step means."""

    def __init__(self, sums: Mapping[str, float], metrics: Mapping[str, RatioMetric]) -> None:
        """Continue from the sums in a checkpoint, or start with none.

        Args:
            sums: sums over the steps since the last line, by name; empty to start.
            metrics: metrics of auxiliary objectives by name, as ratios of sums.
        """
        self.sums = dict(sums)
        self._aux_metric_ratios = metrics

    def add(self, result: StepResult, seconds: float) -> None:
        """Add a step that took ``seconds``; a skipped step contributes only its time and FLOPs."""
        increments = {"steps": 1, "skipped": bool(result.skipped), "seconds": seconds, "flops": result.flops}
        measured = {"n_target_tokens": result.n_target_tokens, "loss": result.loss, "nll": result.nll, "grad_norm": result.grad_norm}
        increments |= {name: 0.0 if result.skipped else value for name, value in (measured | {**result.aux_metrics}).items()}
        self.sums = {name: self.sums.get(name, 0.0) + increment for name, increment in increments.items()}

    def flush(self, peak: float) -> dict[str, float]:
        """Return the metrics of the steps since the last line and reset the sums; ``peak`` is the machine's measured FLOP/s."""
        s, self.sums = self.sums | {N_UPDATES: self.sums["steps"] - self.sums["skipped"]}, {}

        def values(metrics: Mapping[str, RatioMetric]) -> dict[str, float]:
            return {key: s[total] if per is None else s[total] / max(s[per], 1) for key, (total, per) in metrics.items()}

        return {
            **values(_METRIC_RATIOS),
            "target_tokens_per_second": s["n_target_tokens"] / s["seconds"],
            "seconds_per_step": s["seconds"] / s["steps"],
            "matmul_utilization": s["flops"] / s["seconds"] / peak,
            "skipped": s["skipped"],
            **values(self._aux_metric_ratios),
        }
