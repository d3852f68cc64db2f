"""A drawing of a model's own architecture: its layers from input to output, with shapes and numbers of parameters."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor, nn

from transom.inspection.plots.picture import Picture
from transom.layers.block import ParallelBlock, PostNormBlock
from transom.layers.mixture_of_experts import MixtureOfExperts
from transom.layers.stack import Stack
from transom.models.base import Network

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = {
    "embedding": "#F7D9C4",
    "norm": "#F3F0B8",
    "attention": "#F9C9A9",
    "feed-forward": "#BFE3EA",
    "output": "#CFDCF0",
    "other": "#E6E6E6",
}
"""Colors of the boxes by kind; each box also says what it is."""


class Part(NamedTuple):
    """A box of the drawing.

    Attributes:
        column: stack to which it belongs, such as "decoder".
        name: path of the module; in a block without its number.
        kind: key of ``COLORS``.
        label: what is written into the box.
        shape: sizes, such as "512 -> 2048 -> 512".
        parameters: number of parameters of one such part, those of earlier parts (tied) not counted.
        blocks: number of blocks that have it; 0 outside the blocks.
        sublayer: index of the sub-layer around which a residual connection leads; None outside.
        beside: whether the box is drawn beside the one before: parallel sub-layers.
    """

    column: str
    name: str
    kind: str
    label: str
    shape: str
    parameters: int
    blocks: int = 0
    sublayer: int | None = None
    beside: bool = False


def architecture(model: Any) -> Picture:
    """Draw the layers of a model: embeddings, the sub-layers of a block with their residual connections, and the output.

    Args:
        model: a run or model, also on the meta device.
    """
    network: Network = getattr(model, "model", model)
    parts = list_parts(network)
    total = sum(each.parameters * max(each.blocks, 1) for each in parts)
    columns = list(dict.fromkeys(each.column for each in parts))
    tallest = max(sum(each.column == column and not each.beside for each in parts) for column in columns)
    rows = [
        (each.column, each.name, each.label, each.shape, max(each.blocks, 1), each.parameters, each.parameters * max(each.blocks, 1))
        for each in parts
    ]

    def draw(figure: "Figure") -> None:
        axes = figure.subplots()
        axes.set_axis_off()
        axes.set_xlim(0, 10 * len(columns))
        axes.set_ylim(-0.2, 1.25 * tallest + 0.3)
        tops = dict[str, tuple[float, float]]()
        for number, column in enumerate(columns):
            tops[column] = _draw_column(axes, 10 * number, [each for each in parts if each.column == column], tops.get("encoder"))

    blocks = {each.column: each.blocks for each in parts if each.blocks}
    described = ", ".join(f"{column} of {n} blocks" for column, n in blocks.items()) or f"{len(parts)} layers"
    alt = f"{network.config.FAMILY[:1].upper()}{network.config.FAMILY[1:]}: {described}, {total:,} parameters. From input to output: "
    alt += "; ".join(f"{each.label} {each.shape}".strip() for each in parts) + "."
    names = ("column", "name", "part", "shape", "number", "parameters each", "parameters")
    return Picture(f"Architecture: {total:,} parameters", alt, names, rows, draw, (5.2 * len(columns) + 0.6, 0.62 * tallest + 1.0))


def list_parts(network: nn.Module) -> list[Part]:
    """List the boxes of a drawing, from input to output, column by column; their parameters add up to those of the model."""
    counted = set[int]()

    def count(*modules: nn.Module | None) -> int:
        """Count parameters that no earlier part has."""
        new: dict[int, Tensor] = {id(p): p for each in modules if each is not None for p in each.parameters() if id(p) not in counted}
        counted.update(new)
        return sum(p.numel() for p in new.values())

    parts, children, column = list[Part](), dict(network.named_children()), "model"
    stacks = [name for name, child in children.items() if isinstance(child, Stack)]
    for name, child in children.items():
        column = _column_of(name, stacks) or column
        if isinstance(child, Stack):
            parts += _stack_parts(name, child, count)
        elif "embedding" in name and name != "unembedding":
            parts.append(Part(column, name, "embedding", "Embedding", _shape(child), count(child)))
        else:
            kind = "output" if name in ("unembedding", "classifier") else "norm" if "norm" in name else "other"
            label = "Output" if kind == "output" else type(child).__name__
            parts.append(Part(column, name, kind, label, _shape(child), count(child)))
    if rest := sum(p.numel() for p in network.parameters() if id(p) not in counted):
        parts.append(Part(column, "other", "other", "Other parameters", "", rest))
    order = {name: i for i, name in enumerate(dict.fromkeys([*stacks, *(each.column for each in parts)]))}
    return sorted((each for each in parts if each.parameters or each.kind != "other"), key=lambda each: order[each.column])


def _column_of(name: str, stacks: list[str]) -> str | None:
    """Return the column of a module outside the stacks: that of its side in a translator, else the only one."""
    if name in stacks:
        return name
    if len(stacks) < 2:
        return stacks[0] if stacks else None
    return "encoder" if name.startswith("source") else "decoder"


SUBLAYERS = (("attn", "Self-attention", "attention"), ("cross", "Cross-attention", "attention"), ("ff", "Feed-forward", "feed-forward"))


def _stack_parts(name: str, stack: Stack, count: Any) -> Iterator[Part]:
    """Yield the parts of one block of a stack, and its final norm."""
    blocks, n = list(stack.blocks), len(stack.blocks)
    parallel = blocks[0].parallel
    present = [each for each in SUBLAYERS if getattr(blocks[0], each[0], None) is not None]
    if parallel:  # the norms beside each other, then the sub-layers
        owners = ["norm"] if isinstance(blocks[0], ParallelBlock) else [f"{sublayer}_residual.norm" for sublayer, _, _ in present]
        for number, path in enumerate(owners):
            norms = [block.get_submodule(path) for block in blocks]
            yield Part(name, f"{name}.blocks.{path}", "norm", type(norms[0]).__name__, "", count(*norms) // n, n, 0, beside=number > 0)
    for number, (sublayer, label, kind) in enumerate(present):
        modules, path = [getattr(each, sublayer) for each in blocks], f"{name}.blocks.{sublayer}"
        index = 0 if parallel else number
        box = Part(name, path, kind, label, _shape(modules[0]), count(*modules) // n, n, index, parallel and number > 0)
        if parallel:
            yield box
            continue
        placed = [
            Part(
                name,
                f"{path}_residual.{each}",
                "norm",
                type(first).__name__,
                "",
                count(*(getattr(r, each) for r in residuals)) // n,
                n,
                index,
            )
            for residuals in [[getattr(block, f"{sublayer}_residual") for block in blocks]]
            for each in ("norm", "norm_out")
            if (first := getattr(residuals[0], each, None)) is not None
        ]
        if isinstance(blocks[0], PostNormBlock):  # the norm follows the residual sum
            yield from (box, *(each._replace(sublayer=None) for each in placed))
        else:
            yield from (*placed[:1], box, *placed[1:])
    if stack.norm is not None:
        yield Part(name, f"{name}.norm", "norm", f"Final {type(stack.norm).__name__}", "", count(stack.norm))


def _shape(module: nn.Module) -> str:
    """Describe the sizes of a layer by its weight matrices, such as "512 -> 2048 -> 512"."""
    if hasattr(module, "n_heads"):
        shared = "" if module.n_kv_heads == module.n_heads else f", {module.n_kv_heads} key-value heads"
        return f"{module.n_heads} heads of width {module.d_head}{shared}"
    if isinstance(module, MixtureOfExperts):
        return f"{len(module.experts)} experts, {_shape(module.experts[0])}"
    tables = [m for m in module.modules() if isinstance(m, nn.Embedding)]
    table_weights = {id(m.weight) for m in tables}
    matrices = [p.shape for p in module.parameters() if p.dim() == 2 and id(p) not in table_weights]
    if tables:
        projections = [f"{m.in_features:,} -> {m.out_features:,}" for m in module.modules() if isinstance(m, nn.Linear)]
        return " + ".join([*projections, *(f"{m.num_embeddings:,} x {m.embedding_dim}" for m in tables)])
    if not matrices:
        return ""
    narrow, wide = matrices[0][1], matrices[0][0]
    return f"{narrow:,} -> {wide:,}" + (f" -> {matrices[-1][0]:,}" if len(matrices) > 1 else "")


def _draw_column(axes: "Axes", left: float, parts: list[Part], memory: tuple[float, float] | None) -> tuple[float, float]:
    """Draw the boxes of a column from the bottom to the top; return the right end of the highest.

    Args:
        axes: where to draw.
        left: left end of the column.
        parts: boxes of the column, from input to output.
        memory: where the arrow into cross-attention starts; None without an encoder.
    """
    rows = list[list[Part]]()
    for part in parts:
        rows[-1].append(part) if part.beside else rows.append([part])
    middle, spans = left + 4.6, dict[int, list[float]]()
    for number, row in enumerate(rows):
        y, width = 1.25 * number, 6.0 / len(row)
        for i, part in enumerate(row):
            at = left + 1.6 + i * width
            _draw_box(axes, part, at, y, width - (0.2 if len(row) > 1 else 0.0))
            if number:
                _arrow(axes, (middle, y - 0.44), (middle if len(row) == 1 else at + width / 2, y))
            if part.label == "Cross-attention" and memory is not None:
                _arrow(axes, memory, (at, y + 0.4), "#0072B2")
            if part.sublayer is not None:
                spans.setdefault(part.sublayer, [y - 0.2]).append(y + 1.0)
    for low, *ends in spans.values():
        side, high = left + 8.0, max(ends)
        axes.plot([middle, side, side, middle], [low, low, high, high], color="#888888", lw=0.8, zorder=0)
        axes.plot([middle], [high], marker="o", markersize=8, markerfacecolor="white", markeredgecolor="#444444", markeredgewidth=0.8)
        axes.text(middle, high, "+", ha="center", va="center_baseline", fontsize=8, color="#444444")
    inside = [number for number, row in enumerate(rows) if row[0].blocks]
    if inside:
        low, high = 1.25 * inside[0] - 0.3, 1.25 * inside[-1] + 1.1
        axes.plot(
            [left + each for each in (0.9, 8.4, 8.4, 0.9, 0.9)],
            [low, low, high, high, low],
            color="#999999",
            lw=0.8,
            linestyle="--",
            zorder=0,
        )
        axes.text(left + 0.75, (low + high) / 2, f"{rows[inside[0]][0].blocks} x", ha="right", va="center", fontsize=10)
    top = 1.25 * len(rows)
    axes.text(middle, top - 0.1, parts[0].column, ha="center", va="bottom", fontsize=9, fontweight="bold")
    return left + 7.6, top - 0.85


def _draw_box(axes: "Axes", part: Part, left: float, low: float, width: float) -> None:
    """Draw a box with the name of a part, its shape and its number of parameters."""
    from matplotlib.patches import FancyBboxPatch

    form = "round,pad=0.02,rounding_size=0.15"
    axes.add_patch(FancyBboxPatch((left, low), width, 0.8, boxstyle=form, facecolor=COLORS[part.kind], edgecolor="#444444", lw=0.8))
    sizes = [part.shape, f"{part.parameters:,} parameters" if part.parameters else "tied" if part.kind in ("embedding", "output") else ""]
    detail = "; ".join(each for each in sizes if each)
    axes.text(left + width / 2, low + (0.54 if detail else 0.4), part.label, ha="center", va="center", fontsize=8.5)
    axes.text(left + width / 2, low + 0.22, detail, ha="center", va="center", fontsize=6.5 if width > 3 else 5, color="#222222")


def _arrow(axes: "Axes", start: tuple[float, float], end: tuple[float, float], color: str = "#444444") -> None:
    """Draw an arrow."""
    from matplotlib.patches import FancyArrowPatch

    axes.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=8, lw=0.9, color=color, shrinkA=0, shrinkB=0))
