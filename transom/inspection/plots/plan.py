"""A picture of where the parameters, the operations and the memory of a training go."""

from typing import TYPE_CHECKING

from transom.inspection.plots.picture import CATEGORIES, Cell, Picture
from transom.planning.plan import Plan

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEMORY = {
    "weights": "weights",
    "validation_copy": "copy for validation",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "average": "averaged weights",
    "activations": "activations",
    "workspace": "buffers of operations",
    "libraries": "libraries",
}
"""Names of the parts of the memory, by field of ``TrainingBytes``."""


def plan_picture(plan: Plan) -> Picture:
    """Draw three stacked rows of bars: parameters by part, FLOPs per token by part, and bytes by use.

    Args:
        plan: the plan of a training.
    """
    memory = {name: getattr(plan.memory, field) for field, name in MEMORY.items()}
    sums: dict[str, tuple[str, dict[str, float]]] = {
        "parameters": ("", dict(plan.parameters.parts)),
        "FLOPs": (f" per {plan.flops.unit}", dict(plan.flops.parts)),
        "bytes": (" per device", {name: size for name, size in memory.items() if size}),
    }
    rows: list[tuple[Cell, ...]] = [
        (kind, part, value, value / sum(parts.values())) for kind, (_, parts) in sums.items() for part, value in parts.items()
    ]

    def draw(figure: "Figure") -> None:
        for axes, (kind, (per, parts)) in zip(figure.subplots(len(sums), 1), sums.items(), strict=True):
            ordered, total = sorted(parts.items(), key=lambda item: -item[1]), sum(parts.values())
            axes.barh([name for name, _ in ordered], [value / total for _, value in ordered], color=CATEGORIES[0])
            for place, (_, value) in enumerate(ordered):
                axes.text(value / total + 0.01, place, f"{value / total:.1%}", va="center", fontsize=8)
            axes.invert_yaxis()
            axes.set_xlim(0, 1.1)
            axes.set_xticks([])
            axes.spines["bottom"].set_visible(False)
            axes.tick_params(length=0)
            axes.set_title(f"{total:,.0f} {kind}{per}", loc="left")

    described = "; ".join(
        f"{sum(parts.values()):,.0f} {kind}{per}, most in {max(parts, key=parts.__getitem__)}"
        f" ({max(parts.values()) / sum(parts.values()):.0%})"
        for kind, (per, parts) in sums.items()
    )
    height = 0.24 * sum(len(parts) for _, parts in sums.values()) + 2.0
    columns = ("what", "part", "number", "share")
    return Picture(f"Plan of {plan.name}", f"Where the training of {plan.name} goes: {described}.", columns, rows, draw, (6.4, height))
