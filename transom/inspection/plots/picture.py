"""A picture with its text alternative and the numbers that it shows, as SVG, PNG, HTML or CSV."""

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transom.errors import ConfigError
from transom.files.atomic_io import write_file
from transom.inspection.pages.html_tables import html_table
from transom.inspection.pages.markup import escape_control_characters, node, shorten
from transom.inspection.pages.page import render_page

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".svg", ".png", ".html", ".csv")
"""Endings of the files that a picture can be saved as."""

STYLE: dict[str, Any] = {
    "svg.fonttype": "none",  # text stays text, which a reader can select and search
    "svg.hashsalt": "transom",  # the same identifiers on every run
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.0,
    "axes.titlesize": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.parse_math": False,  # a token may be "$"
    "figure.dpi": 100.0,
    "savefig.dpi": 150.0,
}
SEQUENTIAL, DIVERGING = "cividis", "PuOr_r"
"""Color maps of weights from 0 and of signed numbers; readers with any kind of color blindness can distinguish their colors."""

CATEGORIES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
"""Colors of categories for readers with any kind of color blindness (Okabe and Ito 2008)."""

Cell = str | int | float


@dataclass(frozen=True)
class Picture:
    """A drawing of some numbers.

    Attributes:
        title: what the picture shows; one line.
        alt: text alternative: what can be seen, with its most important numbers.
        columns: names of the columns of ``rows``.
        rows: the numbers that are drawn.
        draw: draws on an empty figure.
        size: width and height in inches.
    """

    title: str
    alt: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[Cell, ...]]
    draw: "Callable[[Figure], None]"
    size: tuple[float, float] = (6.4, 4.8)

    def figure(self) -> "Figure":
        """Draw the picture as a matplotlib figure, which can be changed further."""
        with style():
            from matplotlib.figure import Figure

            figure = Figure(figsize=self.size, layout="constrained")
            self.draw(figure)
            figure.suptitle(self.title, fontsize=10)
        return figure

    def svg(self) -> str:
        """Return the picture as SVG, with title and text alternative for screen readers."""
        text = self._render("svg", {"Date": None, "Creator": None}).decode()
        start = text.index("<svg")
        head_end = text.index(">", start)
        names = f"<title>{_escaped(self.title)}</title><desc>{_escaped(self.alt)}</desc>"
        return f'{text[start:head_end]} role="img">{names}{text[head_end + 1 :]}'

    def png(self) -> bytes:
        """Return the picture as PNG, with title and text alternative as metadata."""
        return self._render("png", {"Software": None, "Title": self.title, "Description": self.alt})

    def csv(self) -> str:
        """Return the numbers as CSV; nine digits give back a float32 exactly."""
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows([format(x, ".9g") if isinstance(x, float) else x for x in row] for row in self.rows)
        return buffer.getvalue()

    def html(self) -> str:
        """Return a page with the picture, its text alternative and its numbers, which loads nothing and runs no scripts."""
        import base64

        url = "data:image/svg+xml;base64," + base64.b64encode(self.svg().encode()).decode()
        cells = [[format(x, ".6g") if isinstance(x, float) else str(x) for x in row] for row in self.rows[:MAX_TABLE_ROWS]]
        more = len(self.rows) - len(cells)
        note = node("p", f"The first {len(cells):,} of {len(self.rows):,} rows; a .csv file has all.", class_="soft") if more else None
        picture = node("img", src=url, alt=self.alt, style="max-width: 100%; background: white")
        numbers = node("details", node("summary", "The numbers"), note, html_table(list(self.columns), cells))
        return render_page(self.title, self.title, [(None, "Picture", [picture, node("p", self.alt)]), (None, "Numbers", [numbers])])

    def save(self, path: str | Path) -> None:
        """Write the picture, or its numbers, in the format that the ending of ``path`` names: .svg, .png, .html or .csv.

        Raises:
            ConfigError: the ending is another one.
        """
        content: str | bytes = getattr(self, check_suffix(Path(path))[1:])()
        write_file(Path(path), content if isinstance(content, bytes) else content.encode())

    def _repr_svg_(self) -> str:
        """Show the picture in a notebook."""
        return self.svg()

    def _render(self, form: str, metadata: dict[str, str | None]) -> bytes:
        buffer = io.BytesIO()
        figure = self.figure()
        with style():
            figure.savefig(buffer, format=form, metadata=metadata)
        return buffer.getvalue()


MAX_TABLE_ROWS = 2000
"""Rows of numbers on an HTML page."""


def _escaped(text: str) -> str:
    return escape(escape_control_characters(text))


def check_suffix(path: Path) -> str:
    """Return the ending of a file in lower case.

    Raises:
        ConfigError: pictures have no such format.
    """
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise ConfigError(f"{path}: expected a file that ends in {', '.join(SUFFIXES)}, found {suffix or 'no ending'!r}; name another")
    return suffix


@contextmanager
def style() -> Iterator[None]:
    """Set matplotlib's style for a block; characters that its font lacks are drawn as boxes, without a warning.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    import warnings

    try:
        import matplotlib
    except ImportError:
        raise ConfigError("expected matplotlib, found none; install it with pip install 'transom[plots]'") from None
    rc_context: Any = matplotlib.rc_context  # its type lists every parameter
    with rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        yield


def heat_map(axes: "Axes", values: Any, vmin: float, vmax: float, colors: str = SEQUENTIAL) -> Any:
    """Draw a matrix, row 0 on top; every cell is a shape of its own up to ``MAX_CELLS`` cells, and a pixel beyond.

    Args:
        axes: where to draw.
        values: array (rows, columns).
        vmin: number at the lower end of the colors.
        vmax: number at the upper end of the colors.
        colors: name of a color map of matplotlib.
    """
    if values.size <= MAX_CELLS:
        drawn: Any = axes.pcolormesh(values, vmin=vmin, vmax=vmax, cmap=colors, edgecolors="none", linewidth=0, snap=True)
        axes.invert_yaxis()
        axes.set_xticks([])
        axes.set_yticks([])
        return drawn
    extent = (0, values.shape[1], values.shape[0], 0)
    drawn = axes.imshow(values, vmin=vmin, vmax=vmax, cmap=colors, interpolation="nearest", aspect="auto", extent=extent)
    axes.set_xticks([])
    axes.set_yticks([])
    return drawn


def set_log_scale(axes: "Axes") -> None:
    """Make the x axis logarithmic, with plain numbers at powers of ten, since the style does not set formulas."""
    from matplotlib import rcParams

    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    low, high = axes.get_xlim()
    wide = high / low >= MIN_DECADES_RATIO
    axes.xaxis.set_minor_formatter(lambda value, _: "" if wide or f"{value:e}"[0] not in "25" else f"{value:g}")
    rc: Any = rcParams  # minor ticks are shorter; their labels shall be as low as those of major ones
    axes.tick_params("x", which="minor", pad=rc["xtick.major.size"] + rc["xtick.major.pad"] - rc["xtick.minor.size"])


MIN_DECADES_RATIO = 100.0
"""A logarithmic axis whose ends have a smaller ratio has numbers between the powers of ten too."""

MAX_CELLS = 4096
MAX_LABEL = 14
"""Characters of a token beside a row or column."""


def label_cells(axes: "Axes", rows: Sequence[str] | None, columns: Sequence[str] | None, most: int = 48) -> None:
    """Write names beside the rows and below the columns of a heat map; with more than ``most``, some of them."""
    for names, set_ticks, rotation in ((rows, axes.set_yticks, 0), (columns, axes.set_xticks, 90)):
        if names:
            step = -(-len(names) // most)
            shown = [(i + 0.5, shorten(name, 24)) for i, name in enumerate(names) if i % step == 0]
            set_ticks([at for at, _ in shown], [name for _, name in shown], rotation=rotation, fontsize=8)
    axes.tick_params(length=0)
