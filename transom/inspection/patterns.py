"""Attention patterns as pictures, from a configuration alone: which key each query sees, layer by layer, before anything is trained."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from xml.etree.ElementTree import Element

from jaxtyping import Bool
from torch import Tensor

from transom.config.architecture import Architecture, Transformer
from transom.config.model import Decoder, TextTransformer
from transom.config.patterns import kinds_of, patterns_of, spelled
from transom.config.vision import VisionTransformer
from transom.errors import ConfigError
from transom.inspection.figures import percent
from transom.inspection.markup import node, style_sheet, to_svg
from transom.layers.masks.rule import LOOKING_BACK, SAME_SEGMENT, Places, Rule, build_rules
from transom.layers.vision.grid import image_places, image_rules

MOST_DRAWN = 512
"""Most tokens of a picture."""

_SIDE = 320
"""Width and height of a picture's field, in its units."""
_TOP = 54


@dataclass(frozen=True)
class PatternView:
    """What some layers let each token see of its own sequence.

    Attributes:
        stack: "encoder" or "decoder".
        layers: numbers of the layers, from 0.
        pattern: in words.
        visible: True where a query sees a key.
        of_family: the share of the pairs that the family allows which the pattern leaves.
        grid: patches a row; 0 of texts.
    """

    stack: str
    layers: tuple[int, ...]
    pattern: str
    visible: Bool[Tensor, "query key"]
    of_family: float
    grid: int = 0

    @property
    def share(self) -> float:
        """Share of all pairs of a query and a key that are visible, from 0 to 1."""
        return self.visible.double().mean().item()

    @property
    def title(self) -> str:
        """Say what is seen where, and how much."""
        layers = f"layer{'s' if len(self.layers) > 1 else ''} {', '.join(map(str, self.layers))}"
        left = "" if self.of_family == self.share else f", {percent(self.of_family, 1)} of what it may see at all"
        return f"{self.stack} {layers}: {self.pattern}, {percent(self.share, 1)} of the pairs{left}"


def pattern_views(config: Architecture, length: int) -> list[PatternView]:
    """Write out what each stack's layers see.

    Args:
        config: a Transformer's.
        length: tokens of a text; of an image there are as many as it has patches.

    Raises:
        ConfigError: the network has no attention patterns, or there are more tokens than can be drawn.
    """
    if not isinstance(config, Transformer):
        raise ConfigError(f"expected a Transformer, found model.kind = {config.kind!r}, which has no attention patterns")
    image = config if isinstance(config, VisionTransformer) else None
    places = Places.of_text(length) if image is None else image_places(image)
    if (n := places.positions.shape[1]) > MOST_DRAWN:
        change = "ask for a shorter --length" if image is None else "raise model.patch_size or lower model.image_size"
        raise ConfigError(f"expected at most {MOST_DRAWN} tokens to draw, found {n}; {change}")
    patterns = patterns_of(config.attention.pattern)
    views = []
    for stack, n_layers, family in _stacks(config):
        allowed = int(family.matrix(places, places).sum()) if image is None else n * n
        rules = build_rules(config.attention, family) if image is None else image_rules(image)
        for k, (pattern, rule) in enumerate(zip(patterns, rules, strict=True)):
            if layers := tuple(range(k, n_layers, len(patterns))):
                visible = rule.matrix(places, places)[0, 0].expand(n, n)
                views.append(
                    PatternView(stack, layers, spelled(pattern), visible, int(visible.sum()) / allowed, 0 if image is None else image.grid)
                )
    return views


def shown_views(config: Architecture) -> list[PatternView]:
    """Give the views that are worth a picture: none where all layers see all, or where they are too large to be drawn."""
    if not isinstance(config, Transformer) or kinds_of(config.attention.pattern) <= {"full", "cycle"}:
        return []
    length = min(config.max_seq_len, 64) if isinstance(config, TextTransformer) else config.n_positions
    return pattern_views(config, length) if length <= MOST_DRAWN else []


def _stacks(config: Transformer) -> Iterator[tuple[str, int, Rule]]:
    """Name the stacks that attend to their own sequence, with their layers and what their family lets a token see."""
    if not isinstance(config, Decoder):
        yield "encoder", config.stacks[0], SAME_SEGMENT
    if isinstance(config, Decoder) or len(config.stacks) > 1:
        yield "decoder", config.stacks[-1], LOOKING_BACK


def pattern_picture(view: PatternView) -> Element:
    """Draw a pattern: a row a query, a column a key, filled where the query sees the key; of an image also what its middle patch sees."""
    n = len(view.visible)
    wide = 2 if view.grid else 1
    width, height = wide * (_SIDE + 40), _SIDE + _TOP + 16
    picture = node(
        "svg", viewBox=f"0 0 {width} {height}", width=width, height=height, class_="pattern", role="img", aria_label=f"{view.title}."
    )
    picture.append(node("title", view.title))
    picture.append(node("text", f"{view.stack} {', '.join(map(str, view.layers))}: {view.pattern}", x=20, y=18, class_="symbol"))
    picture.append(node("text", f"key (of {n} tokens) →, query ↓", x=20, y=_TOP - 10, class_="unit"))
    picture.append(_field(view.visible, 20, "pairs"))
    if view.grid:
        middle = view.grid // 2 * (view.grid + 1)
        patches = view.visible[n - view.grid**2 + middle, n - view.grid**2 :].reshape(view.grid, view.grid)
        picture.append(node("text", f"the image: what patch {middle} sees", x=_SIDE + 60, y=_TOP - 10, class_="unit"))
        field = _field(patches, _SIDE + 60, "image")
        at = {"x": view.grid // 2, "y": view.grid // 2, "width": 1, "height": 1}
        field.append(node("rect", **at, class_="asked", fill="none", stroke_width=0.15))
        picture.append(field)
    return picture


def _field(seen: Bool[Tensor, "rows columns"], left: int, kind: str) -> Element:
    """Draw a matrix of truth values, each row's neighbours that are true as one cell."""
    rows, columns = seen.shape
    field = node("svg", x=left, y=_TOP, width=_SIDE, height=_SIDE, viewBox=f"0 0 {columns} {rows}", class_=kind, preserveAspectRatio="none")
    field.append(node("rect", x=0, y=0, width=columns, height=rows, class_="field"))
    for y, row in enumerate(seen.tolist()):
        start = 0
        for value, run in groupby(row):
            length = len(list(run))
            if value:
                field.append(node("rect", x=start, y=y, width=length, height=1, class_="cell"))
            start += length
    return field


def patterns_file(views: Sequence[PatternView]) -> str:
    """Write pictures of patterns, one below the other, as an SVG file that follows the reader's light or dark page."""
    pictures = [pattern_picture(view) for view in views]
    heights = [int(picture.get("height", "0")) for picture in pictures]
    width = max(int(picture.get("width", "0")) for picture in pictures)
    whole = node("svg", viewBox=f"0 0 {width} {sum(heights)}", width=width, height=sum(heights))
    whole.append(style_sheet("colors", "pictures"))
    for i, picture in enumerate(pictures):
        picture.set("y", str(sum(heights[:i])))
        whole.append(picture)
    return to_svg(whole)


def pattern_text(view: PatternView) -> list[str]:
    """Draw a pattern in lines of text: a line a query, a block for each key that it sees."""
    return ["".join("█" if seen else "·" for seen in row) for row in view.visible.tolist()]
