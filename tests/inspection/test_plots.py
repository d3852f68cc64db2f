"""Pictures show the numbers of the model: cell by cell, bar by bar, in the picture, its table and its text alternative."""

import csv
import io
import math
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg

import transom
from tests.inspection.picture_cases import IMAGE, TOKENS, decoder
from tests.models.combinations import ENCODERS, FAMILIES, SET_RECURRENT, SIZES, batch_for, described
from tests.models.test_combinations import built
from tests.tiers import every
from transom.errors import ConfigError
from transom.inspection.plots.attention import matrix_picture
from transom.inspection.plots.picture import SEQUENTIAL, Picture
from transom.models.base import Network


def pixels(picture: Picture) -> tuple[Any, Any]:
    """Draw a picture; return its pixels, 0 to 255, and the axes."""
    figure = picture.figure()
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba()), figure.axes


@pytest.mark.parametrize("size", [(6, 6), (40, 30), (90, 80)])
def test_every_cell_has_the_color_of_its_number(size: tuple[int, int]) -> None:
    torch.manual_seed(1)
    values = torch.rand(size)
    names = [[str(i) for i in range(n)] for n in size]
    image, axes = pixels(matrix_picture("Title", "Alt", values, *names, [], ("a",)))
    colors, top = matplotlib.colormaps[SEQUENTIAL], float(values.max())
    for i, j in torch.randint(0, min(size), (200, 2)).tolist():
        x, y = axes[0].transData.transform((j + (0.2 if size[0] < 20 else 0.5), i + (0.2 if size[0] < 20 else 0.5)))  # beside the number
        found = image[image.shape[0] - 1 - int(y), int(x), :3]
        expected = [round(255 * c) for c in colors(float(values[i, j]) / top)[:3]]
        assert max(abs(int(a) - b) for a, b in zip(found, expected, strict=True)) <= 1, (i, j)


def test_similar_heads_have_equal_maps() -> None:
    model = decoder()
    layer = model.get_submodule("decoder.blocks.0.attn")
    with torch.no_grad():
        for name in "qk":
            linear = getattr(layer, name)
            for tensor in (linear.weight, linear.bias):
                tensor[8:] = tensor[:8]  # both heads compute the same scores
    rows = {row[:2]: float(row[2]) for row in transom.plot("similarity", model, TOKENS).rows}
    assert math.isclose(rows["decoder.blocks.0.attn 0", "decoder.blocks.0.attn 1"], 1.0, abs_tol=1e-6)
    assert rows["decoder.blocks.1.attn 0", "decoder.blocks.1.attn 1"] < 1 - 1e-4


def test_rotary_positions_and_biases_depend_on_the_distance() -> None:
    rotary = transom.plot("positions", decoder(position="rotary"), length=8)
    score = {tuple(row[1:3]): float(row[3]) for row in rotary.rows if row[0] == "products"}
    expected = [sum(math.cos(d * 10000 ** (-2 * i / 8)) for i in range(4)) / 4 for d in range(8)]  # equal unit vectors, d apart
    assert all(math.isclose(score[i, j], expected[abs(i - j)], abs_tol=1e-6) for i in range(8) for j in range(8))
    alibi = transom.plot("positions", decoder(position="alibi"), length=8)
    bias = {tuple(row[1:3]): float(row[3]) for row in alibi.rows if row[0] == "table"}
    assert all(math.isclose(bias[d, h], -d * 2.0 ** (-8 * (h + 1) / 2), abs_tol=1e-6) for d in range(8) for h in range(2))


def test_embeddings_lie_on_the_plane_of_largest_variance(tmp_path: Path) -> None:
    run = transom.load(trained_language_model(tmp_path))
    picture = transom.plot("embeddings", run, most=12)
    names = [str(row[0]) for row in picture.rows]
    symbols = run.tokenizer.symbols(list(range(run.model.config.vocab_size)))
    x = run.model.embedding.tokens.weight.detach().double()[[symbols.index(name) for name in names]]
    x = x - x.mean(0)
    values, vectors = torch.linalg.eigh(x.T @ x)
    for column, direction in ((1, vectors[:, -1]), (2, vectors[:, -2])):
        ours = torch.tensor([float(row[column]) for row in picture.rows], dtype=torch.float64)
        assert torch.allclose((x @ direction).abs(), ours.abs(), atol=1e-6)
    assert f"{float((values[-2:]).sum() / values.sum()):.0%}" in picture.alt


def trained_language_model(folder: Path) -> Path:
    (folder / "text.txt").write_text("the cat sees the dog and the dog sees the cat\n" * 60)
    small = {"model.d_model": 16, "model.d_ff": 24, "model.n_heads": 2, "model.n_layers": 1, "training.max_steps": 2}
    transom.train("text-bpe", folder / "run", small, text=folder / "text.txt", progress=False)
    return folder / "run"


PLACED = [
    SIZES | family | {"norm_placement": placement}
    for family in FAMILIES + ENCODERS
    for placement in ("pre", "post", "sandwich", "parallel", "parallel-separate")
]


@pytest.mark.parametrize("fields", every(5, PLACED + SET_RECURRENT), ids=str)
def test_an_architecture_has_every_parameter_once(fields: dict[str, Any]) -> None:
    assert_every_parameter_once(built(described(fields)))


@pytest.mark.parametrize("kind", ["vision-transformer", "convolutional"])
def test_an_architecture_of_images_has_every_parameter_once(kind: str) -> None:
    names = ("image_size", "classes", "d_model") if kind == "convolutional" else IMAGE
    assert_every_parameter_once(transom.build({"kind": kind} | {name: IMAGE[name] for name in names}))


def assert_every_parameter_once(model: Network) -> None:
    picture = transom.plot("architecture", model)
    assert sum(int(row[-1]) for row in picture.rows) == sum(p.numel() for p in model.parameters())
    assert f"{sum(p.numel() for p in model.parameters()):,} parameters" in picture.alt
    assert "<svg" in picture.svg()


HOSTILE = ["<script>alert(1)</script>", "$x_1$", "a\x1b[31mb", "]]>", "&amp;", "\u202etxt", "猫"]


def test_text_stays_text() -> None:
    names = HOSTILE
    picture = matrix_picture(HOSTILE[0], f"alt {HOSTILE[0]}", torch.eye(7), names, names, [(name, 1.0) for name in names], ("name", "x"))
    root = ElementTree.fromstring(picture.svg())
    space = "{http://www.w3.org/2000/svg}"
    assert root.get("role") == "img" and not root.findall(f".//{space}script")
    assert root.findtext(f"{space}title") == HOSTILE[0] and root.findtext(f"{space}desc") == f"alt {HOSTILE[0]}"
    texts = {text.text for text in root.iter(f"{space}text")}
    assert {"$x_1$", "]]>", "&amp;", "猫"} <= texts
    found: list[str] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: found.append(tag)  # type: ignore[method-assign]
    parser.feed(picture.html())
    assert "img" in found and "script" not in found
    assert list(csv.reader(io.StringIO(picture.csv())))[1][0] == HOSTILE[0]


def test_numbers_come_back_from_the_table() -> None:
    torch.manual_seed(1)
    values = torch.rand(50)
    picture = Picture("t", "a", ("x",), [(float(v),) for v in values], lambda figure: None)
    back = torch.tensor([float(row[0]) for row in list(csv.reader(io.StringIO(picture.csv())))[1:]])
    assert torch.equal(back, values)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("head", {"block": 9}, "blocks: expected indices from 0 to 1, found 9"),
        ("headz", {}, "kind: expected a kind of picture, found 'headz'; did you mean head"),
        ("heads", {"hed": 1}, "hed: expected an option of heads, found another"),
        ("heads", {"attention": "cross"}, "attention: expected decoder for a decoder-only Transformer, found 'cross'"),
        ("experts", {}, "expected a model with a mixture of experts, found none"),
        ("alignment", {}, "expected a translator, whose sentences can be aligned"),
        ("probabilities", {"position": 6}, "position: expected a position from 0 to 5, found 6"),
        ("probabilities", {"temperatures": [0.0]}, "temperatures: expected numbers above 0, found 0"),
        ("embeddings", {}, "expected a run of a text model"),
    ],
)
def test_what_cannot_be_drawn_is_said(kind: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        transom.plot(kind, decoder(), TOKENS, **options)
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


def test_every_family_has_its_pictures() -> None:
    passes = [
        (built(config), batch_for(config)) for config in (described(SIZES | each) for each in (FAMILIES[0], FAMILIES[3], ENCODERS[0]))
    ]
    passes.append((transom.build({"kind": "vision-transformer"} | IMAGE).eval(), torch.rand(1, 3, 8, 8)))
    for model, batch in passes:
        for kind in ("heads", "probabilities", "norms"):
            assert transom.plot(kind, model, batch).rows
