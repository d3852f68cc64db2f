"""Pictures of attention patterns: exactly the cells of the mask, with the share that is visible."""

from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor

from tests.models.combinations import PATTERNS
from tests.models.test_patterns import fields
from transom.config.architecture import TransformerConfig
from transom.config.model import AnyModel
from transom.config.recurrent import RecurrentDecoderConfig
from transom.config.vision import VisionTransformerConfig
from transom.errors import ConfigError
from transom.inspection.pages.pattern_pictures import (
    PatternView,
    pattern_svg,
    pattern_text,
    pattern_views,
    patterns_svg_file,
    views_to_draw,
)
from transom.inspection.pages.report import render_report
from transom.inspection.pages.run_summary import RunSummary
from transom.models.build import build_model

SVG = "{http://www.w3.org/2000/svg}"
STRIPES: Any = [{"kind": "window", "size": 3}, {"kind": "any", "patterns": ["global", {"kind": "strided", "stride": 3}]}]
IMAGE: dict[str, Any] = {"kind": "vision-transformer", "image_size": 12, "patch_size": 2, "d_model": 8, "n_heads": 2, "classes": ["a", "b"]}


def described(drawn: dict[str, Any]) -> TransformerConfig:
    config: TransformerConfig = TypeAdapter(AnyModel).validate_python(drawn)
    return config


def text(pattern: Any, kind: str = "seq2seq") -> TransformerConfig:
    return described(fields(kind, pattern))


def image(pattern: Any, pool: str = "cls") -> VisionTransformerConfig:
    config: Any = described(IMAGE | {"n_layers": 3, "attention": {"pattern": pattern}, "pooling": pool})
    return config


def filled(picture: Element, kind: str) -> Tensor:
    """Read a drawn matrix back: cells that are filled."""
    (field,) = [svg for svg in picture.iter() if svg.tag.removeprefix(SVG) == "svg" and svg.get("class") == kind]
    columns, rows = map(int, str(field.get("viewBox")).split()[2:])
    found = torch.zeros(rows, columns, dtype=torch.bool)
    for cell in field:
        if cell.get("class") == "cell":
            x, y, width, height = (int(cell.get(name, "")) for name in ("x", "y", "width", "height"))
            assert height == 1 and not found[y, x : x + width].any()
            found[y, x : x + width] = True
    return found


def test_the_cells_are_those_of_the_mask() -> None:
    views = pattern_views(text(STRIPES), 20)
    assert [(view.stack, view.layers, view.pattern) for view in views] == [
        ("encoder", (0,), "window(size=3)"),
        ("encoder", (1,), "any(global(size=1), strided(stride=3))"),
        ("decoder", (0,), "window(size=3)"),
        ("decoder", (1,), "any(global(size=1), strided(stride=3))"),
    ]
    i, j = torch.arange(20)[:, None], torch.arange(20)[None]
    window, stripes = (i - j).abs() < 3, ((i - j) % 3 == 0) | (i == 0) | (j == 0)
    for view, mask in zip(views, (window, stripes, window & (j <= i), stripes & (j <= i)), strict=True):
        assert torch.equal(view.mask, mask) and torch.equal(filled(pattern_svg(view), "pairs"), mask)
        assert pattern_text(view) == ["".join("█" if seen else "·" for seen in row) for row in mask.tolist()]
        assert view.density == pytest.approx(mask.sum().item() / 400)
    assert views[0].fraction_of_allowed == views[0].density and views[2].fraction_of_allowed == pytest.approx(
        window.tril().sum().item() / 210
    )
    assert views[2].title == "decoder layer 0: window(size=3), 14.2% of the pairs, 27.1% of the allowed pairs"


@pytest.mark.parametrize("pattern", ["full", {"kind": "window-2d", "size": 2}, STRIPES])
@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_an_images_cells_are_what_its_blocks_see(pattern: Any, pool: str) -> None:
    config = image(pattern, pool)
    views = pattern_views(config, 1)
    model: Any = build_model(config)
    pixels = torch.zeros(1, 3, 12, 12)
    contexts = model.context(pixels, dense=True).attention_contexts
    n = 37 if pool == "cls" else 36
    for view, ctx in zip(views, contexts, strict=True):
        mask = torch.ones(n, n, dtype=torch.bool) if ctx.mask is None else ctx.mask[0, 0]
        picture = pattern_svg(view)
        assert torch.equal(view.mask, mask) and torch.equal(filled(picture, "pairs"), mask)
        assert torch.equal(filled(picture, "image").flatten(), mask[n - 36 + 21, n - 36 :])
    assert [view.layers for view in views] == ([(0, 2), (1,)] if pattern == STRIPES else [(0, 1, 2)])


def test_a_file_holds_all_pictures_one_below_the_other() -> None:
    views = pattern_views(image(STRIPES), 1)
    whole = ElementTree.fromstring(patterns_svg_file(views))
    pictures = [picture for picture in whole if picture.get("class") == "pattern"]
    assert [torch.equal(filled(picture, "pairs"), view.mask) for picture, view in zip(pictures, views, strict=True)] == [True, True]
    assert pictures[1].get("y") == pictures[0].get("height") and "<style>" in patterns_svg_file(views)
    assert [picture.findtext(f"{SVG}title") for picture in pictures] == [view.title for view in views]


def test_the_report_draws_what_is_not_seen_whole(run: RunSummary) -> None:
    from dataclasses import replace

    assert "Attention patterns" not in render_report(run)
    sparse = run.recipe.model_copy(update={"model": text(STRIPES)})
    page = render_report(replace(run, recipe=sparse))
    assert "Attention patterns" in page and page.count('class="pattern"') == 4
    assert views_to_draw(text(["full", "full"])) == [] == views_to_draw(RecurrentDecoderConfig(vocab_size=9))
    assert len(views_to_draw(image("window-2d"))) == 1 and views_to_draw(described(IMAGE | {"patch_size": 1, "image_size": 64})) == []


@pytest.mark.parametrize(
    ("config", "length", "message"),
    [
        (
            RecurrentDecoderConfig(vocab_size=9),
            9,
            "found model.kind = 'recurrent-decoder', which has no attention patterns",
        ),
        (text("full"), 600, "at most 512 tokens to draw, found 600; give a shorter --length"),
        (described(IMAGE | {"patch_size": 1, "image_size": 32}), 9, "found 1025; raise model.patch_size"),
    ],
)
def test_what_cannot_be_drawn_is_said(config: Any, length: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        pattern_views(config, length)


def test_every_pattern_of_the_combinations_is_drawn() -> None:
    for pattern in PATTERNS:
        for view in pattern_views(text(pattern, "decoder"), 12):
            assert isinstance(view, PatternView) and torch.equal(filled(pattern_svg(view), "pairs"), view.mask)
