"""How long a step takes of late, from which the time left is told."""

MIN_STEPS_FOR_FORECAST = 100
"""Steps after which the pace can be believed."""

AVERAGING_STEPS = 100
"""Steps of which the pace is the mean, the later ones weighing more; a machine's speed changes, and the first steps are slow."""


class StepTimer:
    """Seconds a step: of late what steps take, over this process's whole time what comes between them (validation, checkpoints)."""

    def __init__(self) -> None:
        """Begin with no step."""
        self.n_steps = 0
        self._step_seconds = self._pause_seconds = 0.0

    def after_step(self, seconds: float) -> None:
        """Count a step."""
        self.n_steps += 1
        self._step_seconds += (seconds - self._step_seconds) / min(self.n_steps, AVERAGING_STEPS)

    def after_pause(self, seconds: float) -> None:
        """Count what came between two steps."""
        self._pause_seconds += seconds

    @property
    def seconds_per_step(self) -> float:
        """Give what a step takes, with its share of what comes between."""
        return self._step_seconds + self._pause_seconds / max(self.n_steps, 1)
