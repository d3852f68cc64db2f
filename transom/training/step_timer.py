"""Average the time per training step, from which the remaining time of a run is estimated."""

FORECAST_STEPS, FORECAST_SECONDS, MIN_FORECAST_STEPS = 100, 20.0, 3
"""The average is reliable enough for a forecast after 100 steps, or after 20 seconds and at least 3 steps."""

AVERAGING_STEPS = 100
"""The average gives a new step at least the weight 1 / 100, because a machine's speed changes."""


class StepTimer:
    """Averages seconds per step: a moving average of step times, plus all pauses (validations, checkpoints) divided by the steps.

    The first step counts only until the second one: it also loads libraries and starts the GPU, which can take longer than 100 steps.
    """

    def __init__(self) -> None:
        """Start with no steps and no pauses."""
        self.n_steps, self.total_seconds = 0, 0.0
        self._step_seconds = self._pause_seconds = 0.0

    def after_step(self, seconds: float) -> None:
        """Add a step that took ``seconds``, pauses excluded."""
        self.n_steps += 1
        self.total_seconds += seconds
        self._step_seconds += (seconds - self._step_seconds) / min(max(self.n_steps - 1, 1), AVERAGING_STEPS)

    def after_pause(self, seconds: float) -> None:
        """Add a pause of ``seconds`` between two steps."""
        self._pause_seconds += seconds

    @property
    def is_reliable(self) -> bool:
        """Whether the average is reliable enough for a forecast."""
        return self.n_steps >= FORECAST_STEPS or (self.total_seconds >= FORECAST_SECONDS and self.n_steps >= MIN_FORECAST_STEPS)

    @property
    def step_seconds(self) -> float:
        """Average seconds per step, pauses excluded."""
        return self._step_seconds

    @property
    def seconds_per_step(self) -> float:
        """Average seconds per step, including an equal share of all pauses so far."""
        return self._step_seconds + self._pause_seconds / max(self.n_steps, 1)
