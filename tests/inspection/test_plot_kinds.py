"""Of every kind of picture the table has the model's numbers, the cells have their colors, the words name them, the bytes are repeated."""

import csv
import io
import math
import os
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

from tests.inspection.picture_cases import CASES, Rows, no_matrix
from tests.tiers import every
from transom.inspection.plots.kinds import KINDS
from transom.inspection.plots.lenses import OPACITY
from transom.inspection.plots.picture import Picture


def test_every_kind_has_a_case() -> None:
    assert list(dict.fromkeys(name.partition(" ")[0] for name in CASES)) == list(KINDS)


@cache
def picture_of(name: str) -> Picture:
    """Draw the picture of a case once."""
    return CASES[name].draw()


def table(picture: Picture) -> Rows:
    """Read the CSV file of a picture; its cells have the types of the picture's."""
    cells = list(csv.reader(io.StringIO(picture.csv())))[1:]
    return [tuple(type(x)(cell) for cell, x in zip(row, of, strict=True)) for row, of in zip(cells, picture.rows, strict=True)]


@pytest.mark.parametrize("name", CASES)
def test_the_table_has_the_numbers_of_the_model(name: str) -> None:
    picture = picture_of(name)
    assert picture.csv().splitlines()[0].split(",") == list(picture.columns)
    for found, row in zip(table(picture), CASES[name].rows(), strict=True):
        for column, a, b in zip(picture.columns, found, row, strict=True):
            assert math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-7) if isinstance(b, float) else a == b, (column, found, row)


@pytest.mark.parametrize("name", CASES)
def test_the_words_name_what_is_shown(name: str) -> None:
    picture, said = picture_of(name), CASES[name].said(CASES[name].rows())
    assert len(said) > 1 and not [each for each in said if each not in picture.alt], picture.alt
    assert "\n" not in picture.alt + picture.title and picture.title and picture.alt.endswith(".")


@pytest.mark.parametrize("name", every(5, CASES))
def test_every_file_has_the_words(name: str) -> None:
    picture = picture_of(name)
    root, space = ElementTree.fromstring(picture.svg()), "{http://www.w3.org/2000/svg}"
    assert root.get("role") == "img"
    assert (root.findtext(f"{space}title"), root.findtext(f"{space}desc")) == (picture.title, picture.alt)
    written = Image.open(io.BytesIO(picture.png())).info
    assert (written["Title"], written["Description"]) == (picture.title, picture.alt)
    images: list[dict[str, str | None]] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: images.append(dict(attrs)) if tag == "img" else None  # type: ignore[method-assign]
    parser.feed(picture.html())
    assert [each["alt"] for each in images] == [picture.alt]


def drawn(picture: Picture) -> tuple[Any, Any, list[Any]]:
    """Draw a picture; return the figure, its pixels from 0 to 255, row 0 on top, and the axes that hold a matrix."""
    figure = picture.figure()
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    axes = [each for each in figure.axes if each.get_label() != "<colorbar>" and any(_is_matrix(x) for x in each.get_children())]
    return figure, np.asarray(canvas.buffer_rgba())[..., :3].astype(float), axes


def _is_matrix(artist: Any) -> bool:
    return isinstance(artist, matplotlib.collections.QuadMesh) or (
        isinstance(artist, matplotlib.image.AxesImage) and artist.get_array().ndim == 2  # type: ignore[union-attr]
    )


@pytest.mark.parametrize("name", CASES)
def test_every_cell_has_the_color_of_its_number(name: str) -> None:
    """Of the CSV file, in the color map between the two ends of the color bar, within 1/255; a picture shines through one matrix."""
    picture = picture_of(name)
    figure, pixels, axes = drawn(picture)
    matrices = CASES[name].matrices(table(picture))
    assert len(axes) == len(matrices)
    bars = [each.get_ylim() for each in figure.axes if each.get_label() == "<colorbar>"]
    assert len(bars) > 0 or not matrices
    for bar in bars:
        assert any(np.allclose(bar, (each.low, each.high), rtol=1e-6) for each in matrices)
    for panel, (values, low, high, name_of_colors, image) in zip(axes, matrices, strict=True):
        for i, j in np.ndindex(*values.shape):
            x, y = panel.transData.transform((j + 0.375, i + 0.2))  # beside the text in the cell
            found = pixels[pixels.shape[0] - 1 - int(y), int(x)]
            color = 255 * np.array(matplotlib.colormaps[name_of_colors]((float(values[i, j]) - low) / (high - low))[:3])
            if image is not None:
                height, width = (n // m for n, m in zip(image.shape, values.shape, strict=False))
                below = 255 * image[int((i + 0.2) * height), int((j + 0.375) * width)].numpy()
                color = OPACITY * color + (1 - OPACITY) * below
            assert np.abs(found - color.round()).max() <= 1 + (image is not None), (i, j)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.matrices is no_matrix])
def test_every_number_without_a_cell_is_drawn(name: str) -> None:
    """As the height of a bar or of a point of a line, as the place of a point, or in words."""
    picture = picture_of(name)
    figure, _, _ = drawn(picture)
    marks = [float(bar.get_height()) for each in figure.axes for bar in each.patches if hasattr(bar, "get_height")]
    marks += [float(y) for each in figure.axes for line in each.lines for y in line.get_ydata()]
    marks += [float(x) for each in figure.axes for points in each.collections for x in np.asarray(points.get_offsets()).flatten()]
    legends = (text for each in figure.axes if each.get_legend() for text in each.get_legend().texts)
    words = "\n".join(text.get_text() for text in [*legends, *(text for each in figure.axes for text in each.texts)])
    for number in {number for row in picture.rows for number in row if isinstance(number, float)}:
        assert f" {number:g}" in words or any(math.isclose(number, mark, rel_tol=1e-6, abs_tol=1e-9) for mark in marks), number
    if name == "architecture":
        for row in picture.rows:
            assert str(row[2]) in words and str(row[3]) in words and (not row[5] or f"{row[5]:,} parameters" in words)


@pytest.mark.parametrize("name", every(7, CASES))
def test_the_same_call_gives_the_same_bytes(name: str) -> None:
    first, second = CASES[name].draw(), CASES[name].draw()
    for form in ("svg", "png", "csv", "html"):
        a, b = (getattr(picture, form)() for picture in (first, second))
        assert a == b and len(a) > 60


@pytest.mark.soak
def test_another_process_writes_the_same_bytes(tmp_path: Path) -> None:
    script = (
        "import sys; from tests.inspection.picture_cases import CASES\n"
        "for name, case in CASES.items():\n"
        "    picture = case.draw()\n"
        "    for end in ('.svg', '.png', '.html', '.csv'): picture.save(f'{sys.argv[1]}/{name}{end}')"
    )
    for seed in ("1", "2"):
        (tmp_path / seed).mkdir()
        root = Path(__file__).parents[2]
        found = {"PYTHONHASHSEED": seed, "PATH": "", "PYTHONPATH": str(root), "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
        subprocess.run([sys.executable, "-c", script, str(tmp_path / seed)], check=True, env=found, cwd=root)
    files = sorted(each.name for each in (tmp_path / "1").iterdir())
    assert files == sorted(f"{name}{end}" for name in CASES for end in (".svg", ".png", ".html", ".csv"))
    for each in files:
        assert (tmp_path / "1" / each).read_bytes() == (tmp_path / "2" / each).read_bytes(), each
