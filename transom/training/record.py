"""The record of a run: sums between two lines of ``metrics.jsonl``."""

from collections.abc import Mapping

from transom.training.step import StepResult

_PASSED = ("routed_tokens", "routed_chosen", "routed_alone")
"""Sums of ``training.events.Passed``."""


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
