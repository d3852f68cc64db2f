"""Measure the recent time per step, from which the time left is estimated."""

MIN_STEPS_FOR_FORECAST = 100
"""Number of steps after which the estimate is reliable."""

AVERAGING_STEPS = 100
"""Number of steps in the weighted mean of step times; a machine's speed changes, and the first steps are slow."""


class StepTimer:
    """Seconds per step: a recent mean of the steps, and the mean over the whole process of pauses (validation, checkpoints)."""

    def __init__(self) -> None:
        """Start with no step."""
        self.n_steps = 0
        self._step_seconds = self._pause_seconds = 0.0

    def after_step(self, seconds: float) -> None:
        """Add the time of a step."""
        self.n_steps += 1
        self._step_seconds += (seconds - self._step_seconds) / min(self.n_steps, AVERAGING_STEPS)

    def after_pause(self, seconds: float) -> None:
        """Add the time of a pause between two steps."""
        self._pause_seconds += seconds

    @property
    def seconds_per_step(self) -> float:
        """Return the time per step, including its share of the pauses."""
        return self._step_seconds + self._pause_seconds / max(self.n_steps, 1)
