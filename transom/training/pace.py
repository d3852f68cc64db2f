"""How long a step takes of late, from which the time left is told."""

SETTLED = 100
"""Steps after which the pace can be believed."""

MEMORY = 100
"""Steps of which the pace is the mean, the later ones weighing more; a machine's speed changes, and the first steps are slow."""


class Pace:
    """Seconds a step: of late what steps take, over this process's whole time what comes between them (validation, checkpoints)."""

    def __init__(self) -> None:
        """Begin with no step."""
        self.n_steps = 0
        self._of_steps = self._between = 0.0

    def stepped(self, seconds: float) -> None:
        """Count a step."""
        self.n_steps += 1
        self._of_steps += (seconds - self._of_steps) / min(self.n_steps, MEMORY)

    def paused(self, seconds: float) -> None:
        """Count what came between two steps."""
        self._between += seconds

    @property
    def seconds_a_step(self) -> float:
        """Give what a step takes, with its share of what comes between."""
        return self._of_steps + self._between / max(self.n_steps, 1)
