"""A picture of a layout: the mesh of its processes, and the timeline of its pipeline."""

from typing import TYPE_CHECKING, Any

from transom.config.parallel import ParallelConfig
from transom.inspection.plots.picture import CATEGORIES, Picture
from transom.planning.layout import format_layout
from transom.planning.schedule import Cell, one_forward_one_backward
from transom.training.rehearse import Rehearsal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_STAGES, MAX_ROWS, MAX_COLUMNS = 8, 8, 8
"""Most stages, and most processes along the other axes, that the mesh shows; of larger ones the first are drawn."""

MIN_COLUMNS = 12
"""Columns of processes for which the mesh has room, so that few processes are not drawn wide."""

MAX_TIMELINE_STAGES = 32
MAX_CELLS = 2048
"""Most passes of a timeline; with more, fewer micro-batches are drawn."""

MAX_NUMBERED = 36
"""Most micro-batches whose numbers are written into their passes."""

DIGIT = 0.0085
"""Fraction of the width of the timeline that a digit takes; numbers are left out of passes that are narrower."""

MACHINES = ("#CFE3F2", "#F5E3BF")
"""Colors of the machines in turn."""

FORWARD, BACKWARD, SUMS = CATEGORIES[0], CATEGORIES[1], CATEGORIES[2]


def layout_picture(rehearsal: Rehearsal) -> Picture:
    """Draw the processes of a mesh by stage, batch and tokens, and the passes of every stage over time."""
    r = rehearsal
    cells, n_drawn = timeline(r)
    rows = [tuple(cell) for cell in cells]
    shown = min(r.layout.pipeline, MAX_STAGES)
    n_stages = min(r.layout.pipeline, MAX_TIMELINE_STAGES)
    heights = [0.34 * _shown(r.layout)[0] + 0.9, 0.3 * n_stages + 1.0]

    def draw(figure: "Figure") -> None:
        halves: Any = figure.subfigures(2, 1, height_ratios=heights)
        above, below = halves
        for stage in range(shown):
            _draw_stage(above.add_subplot(1, shown, stage + 1), r, stage)
        n_nodes = -(-r.layout.n_processes // r.cluster.devices_per_node)
        if n_nodes > 1:
            note = f"{n_nodes:,} machines of {r.cluster.devices_per_node} devices, blue and yellow in turn"
            above.supxlabel(note, fontsize=7, color="#555555")
        _draw_timeline(below.add_subplot(), r, cells, n_drawn)

    seconds = r.seconds
    alt = (
        f"processes: {r.layout.n_processes:,}; stages: {r.layout.pipeline}; parts of the batch: {r.layout.n_batch_parts}, of the tokens:"
        f" {r.layout.context * r.layout.tensor}. A step takes {seconds.total:.3g} s: {r.micro.n} micro-batches of"
        f" {seconds.slowest.micro_batch:.3g} s in the slowest stage; on average a stage waits {seconds.idle:.1%} of the time."
    )
    columns = ("stage", "pass", "micro_batch", "start", "end")
    return Picture(f"{r.name} on {format_layout(r.layout)}", alt, columns, rows, draw, (9.0, sum(heights) + 0.4))


def timeline(rehearsal: Rehearsal) -> tuple[list[Cell], int]:
    """Return the passes that are drawn, and their number of micro-batches: all, or twice as many as stages if these are too many."""
    n_stages, n = rehearsal.layout.pipeline, rehearsal.micro.n
    if 2 * n_stages * n > MAX_CELLS:
        n = min(n, max(2 * min(n_stages, MAX_TIMELINE_STAGES), 8))
    cells = one_forward_one_backward([stage.micro_batch for stage in rehearsal.seconds.stages], n)
    return [cell for cell in cells if cell.stage < MAX_TIMELINE_STAGES], n


def _shown(layout: ParallelConfig) -> tuple[int, int, bool]:
    """Return the rows and columns of processes that are drawn of a stage, and whether the parts of the batch are columns, not rows."""
    n_batch, n_tokens = layout.n_batch_parts, layout.context * layout.tensor
    transposed = layout.pipeline == 1 and n_tokens < n_batch
    n_rows, n_columns = (n_tokens, n_batch) if transposed else (n_batch, n_tokens)
    return min(n_rows, MAX_ROWS), min(n_columns, MAX_COLUMNS * (1 + transposed)), transposed


def _draw_stage(axes: "Axes", r: Rehearsal, stage: int) -> None:
    """Draw the processes of one stage: parts of the batch in one direction, parts of the tokens in the other."""
    from matplotlib.patches import Rectangle

    layout, n_tokens = r.layout, r.layout.context * r.layout.tensor
    rows, columns, transposed = _shown(layout)
    for row in range(rows):
        for column in range(columns):
            batch, tokens = (column, row) if transposed else (row, column)
            rank = (stage * layout.n_batch_parts + batch) * n_tokens + tokens
            color = MACHINES[rank // r.cluster.devices_per_node % 2]
            axes.add_patch(Rectangle((column + 0.04, row + 0.06), 0.92, 0.88, facecolor=color, edgecolor="#666666", linewidth=0.6))
            axes.text(column + 0.5, row + 0.52, str(rank), ha="center", va="center", fontsize=7 if layout.pipeline < 5 else 5.5)
    axes.set_xlim(0, max(columns, MIN_COLUMNS // min(layout.pipeline, MAX_STAGES)))
    axes.set_ylim(rows, 0)
    axes.set_xticks([])
    axes.set_yticks([])
    for side in axes.spines.values():
        side.set_visible(False)
    names = ", ".join(f"{n} {stack} block{'' if n == 1 else 's'}" for stack, n in r.ranks[stage].stage.blocks.items())
    more = f" (of {layout.pipeline})" if stage == MAX_STAGES - 1 and layout.pipeline > MAX_STAGES else ""
    axes.set_title(f"stage {stage}{more}\n{names}" if layout.pipeline > 1 else names, fontsize=8, loc="left")
    of_batch, of_tokens = _describe(layout, ("data", "shard", "expert")), _describe(layout, ("context", "tensor"))
    across, down = (of_batch, of_tokens) if transposed else (of_tokens, of_batch)
    n_down, n_across = (n_tokens, layout.n_batch_parts) if transposed else (layout.n_batch_parts, n_tokens)
    axes.set_xlabel(across + (f", the first {columns}" if n_across > columns else ""), fontsize=7, loc="left")
    if stage == 0:
        axes.set_ylabel(down + (f",\nthe first {rows}" if n_down > rows else ""), fontsize=7)


def _describe(layout: ParallelConfig, axes: tuple[str, ...]) -> str:
    return " x ".join(f"{axis} {getattr(layout, axis)}" for axis in axes if getattr(layout, axis) > 1)


def _draw_timeline(axes: "Axes", r: Rehearsal, cells: list[Cell], n_drawn: int) -> None:
    """Draw forward and backward passes of each stage over time, then the sums of gradients."""
    end, n_stages = max(cell.end for cell in cells), min(r.layout.pipeline, MAX_TIMELINE_STAGES)
    sums, edge = max(stage.per_step for stage in r.seconds.stages), 0.6 if n_drawn <= MAX_NUMBERED else 0.0
    for kind, color in (("forward", FORWARD), ("backward", BACKWARD)):
        for stage in range(n_stages):
            bars = [(cell.start, cell.end - cell.start) for cell in cells if cell.stage == stage and cell.kind == kind]
            label = f"{kind} pass" if stage == 0 else None
            axes.broken_barh(bars, (stage + 0.1, 0.8), facecolors=color, edgecolor="white", linewidth=edge, label=label)
    if sums > 0:
        axes.broken_barh([(end, sums)], (0.1, n_stages - 0.2), facecolors=SUMS, edgecolor="white", label="sum of gradients")
    if n_drawn <= MAX_NUMBERED:
        for cell in cells:
            if (cell.end - cell.start) / (end + sums) < DIGIT * len(str(cell.micro_batch)):
                continue
            axes.text(
                (cell.start + cell.end) / 2,
                cell.stage + 0.52,
                str(cell.micro_batch),
                ha="center",
                va="center",
                fontsize=6.5,
                color="white" if cell.kind == "forward" else "black",
            )
    axes.set_xlim(0, end + sums)
    axes.set_ylim(n_stages, 0)
    step = -(-n_stages // 16)
    axes.set_yticks([i + 0.5 for i in range(0, n_stages, step)], [f"stage {i}" for i in range(0, n_stages, step)])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("seconds")
    drawn = "" if n_drawn == r.micro.n else f", drawn with {n_drawn}"
    waiting = f"; stages wait {r.seconds.idle:.1%} of the time" if n_stages > 1 else ""
    plural = "" if r.micro.n == 1 else "es"
    axes.set_title(f"{r.micro.n} micro-batch{plural} per step{drawn}{waiting}", loc="left")
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3, frameon=False, fontsize=8, borderaxespad=0.2)
