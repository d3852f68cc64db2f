"""Pictures of attention masks from a model configuration: the keys each query attends to, per layer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from xml.etree.ElementTree import Element

from jaxtyping import Bool
from torch import Tensor

from transom.config.architecture import ModelConfig, TransformerConfig
from transom.config.model import DecoderConfig, TextTransformerConfig
from transom.config.patterns import block_patterns, format_pattern, pattern_kinds
from transom.config.vision import VisionTransformerConfig
from transom.errors import ConfigError
from transom.files.message import as_sentence
from transom.inspection.messages.tables import message
from transom.inspection.pages.markup import node, style_sheet, to_svg
from transom.inspection.pages.number_format import format_percent
from transom.layers.masks.mask_rules import CAUSAL_IN_SEGMENT, SAME_SEGMENT, MaskRule, TokenPositions, build_mask_rules
from transom.layers.vision.vision_mask import image_mask_rules, image_positions

MAX_TOKENS = 512
"""Maximum number of tokens in a picture."""

_MATRIX_SIZE = 320
"""Width and height of a drawn matrix, in SVG units."""
_TOP = 54


@dataclass(frozen=True)
class PatternView:
    """The self-attention mask of some layers.

    Attributes:
        stack: "encoder" or "decoder".
        layers: indices of the layers with this mask, from 0.
        pattern: description of the sparsity pattern.
        mask: True where a query attends to a key.
        fraction_of_allowed: fraction that the pattern keeps of the query-key pairs that the architecture allows (all, or the causal half).
        grid: patches per row of an image; 0 for texts.
    """

    stack: str
    layers: tuple[int, ...]
    pattern: str
    mask: Bool[Tensor, "query key"]
    fraction_of_allowed: float
    grid: int = 0

    @property
    def density(self) -> float:
        """Fraction of all query-key pairs that are attended to, from 0 to 1."""
        return self.mask.double().mean().item()

    @property
    def title(self) -> str:
        """A caption: stack, layers, pattern and density."""
        restricted = self.fraction_of_allowed != self.density
        allowed = {"allowed": format_percent(self.fraction_of_allowed, 1)} if restricted else {}
        return message(
            "patterns.title_of_allowed" if restricted else "patterns.title",
            n=len(self.layers),
            stack=message(f"stacks.{self.stack}"),
            layers=", ".join(map(str, self.layers)),
            pattern=self.pattern,
            density=format_percent(self.density, 1),
            **allowed,
        )


def pattern_views(config: ModelConfig, length: int) -> list[PatternView]:
    """Compute the self-attention masks of a model's layers, one view per stack and pattern.

    Args:
        config: configuration of a Transformer.
        length: number of tokens of a text; ignored for images, whose tokens are their patches.

    Raises:
        ConfigError: the network has no attention patterns, or the number of tokens exceeds ``MAX_TOKENS``.
    """
    if not isinstance(config, TransformerConfig):
        raise ConfigError(f"expected a Transformer, found model.kind = {config.kind!r}, which has no attention patterns")
    image = config if isinstance(config, VisionTransformerConfig) else None
    token_positions = TokenPositions.single_sequence(length) if image is None else image_positions(image)
    if (n := token_positions.positions.shape[1]) > MAX_TOKENS:
        change = "give a shorter --length" if image is None else "raise model.patch_size or lower model.image_size"
        raise ConfigError(f"expected at most {MAX_TOKENS} tokens to draw, found {n}; {change}")
    patterns = block_patterns(config.attention.pattern)
    views = []
    for stack, n_layers, family in _stacks(config):
        allowed = int(family.dense(token_positions, token_positions).sum()) if image is None else n * n
        rules = build_mask_rules(config.attention, family) if image is None else image_mask_rules(image)
        for k, (pattern, rule) in enumerate(zip(patterns, rules, strict=True)):
            if layers := tuple(range(k, n_layers, len(patterns))):
                visible = rule.dense(token_positions, token_positions)[0, 0].expand(n, n)
                views.append(
                    PatternView(
                        stack, layers, format_pattern(pattern), visible, int(visible.sum()) / allowed, 0 if image is None else image.grid
                    )
                )
    return views


def views_to_draw(config: ModelConfig) -> list[PatternView]:
    """Return the attention masks that a report shows: none if all layers use full attention or an image has too many patches."""
    if not isinstance(config, TransformerConfig) or pattern_kinds(config.attention.pattern) <= {"full", "cycle"}:
        return []
    length = min(config.max_seq_len, 64) if isinstance(config, TextTransformerConfig) else config.n_positions
    return pattern_views(config, length) if length <= MAX_TOKENS else []


def _stacks(config: TransformerConfig) -> Iterator[tuple[str, int, MaskRule]]:
    """Yield (name, number of layers, base mask rule) of each stack with self-attention."""
    if not isinstance(config, DecoderConfig):
        yield "encoder", config.stacks[0], SAME_SEGMENT
    if isinstance(config, DecoderConfig) or len(config.stacks) > 1:
        yield "decoder", config.stacks[-1], CAUSAL_IN_SEGMENT


def pattern_svg(view: PatternView) -> Element:
    """Draw a mask as SVG: rows are queries, columns are keys; for an image also the patches that the middle patch attends to."""
    n = len(view.mask)
    n_panels = 2 if view.grid else 1
    width, height = n_panels * (_MATRIX_SIZE + 40), _MATRIX_SIZE + _TOP + 16
    picture = node(
        "svg", viewBox=f"0 0 {width} {height}", width=width, height=height, class_="pattern", role="img", aria_label=as_sentence(view.title)
    )
    picture.append(node("title", view.title))
    heading = message(
        "patterns.heading", stack=message(f"stacks.{view.stack}"), layers=", ".join(map(str, view.layers)), pattern=view.pattern
    )
    picture.append(node("text", heading, x=20, y=18, class_="symbol"))
    picture.append(node("text", message("patterns.axes", n=n), x=20, y=_TOP - 10, class_="unit"))
    picture.append(_matrix_svg(view.mask, 20, "pairs"))
    if view.grid:
        middle = view.grid // 2 * (view.grid + 1)
        patches = view.mask[n - view.grid**2 + middle, n - view.grid**2 :].reshape(view.grid, view.grid)
        picture.append(node("text", message("patterns.patches", patch=middle), x=_MATRIX_SIZE + 60, y=_TOP - 10, class_="unit"))
        field = _matrix_svg(patches, _MATRIX_SIZE + 60, "image")
        at = {"x": view.grid // 2, "y": view.grid // 2, "width": 1, "height": 1}
        field.append(node("rect", **at, class_="asked", fill="none", stroke_width=0.15))
        picture.append(field)
    return picture


def _matrix_svg(seen: Bool[Tensor, "rows columns"], left: int, kind: str) -> Element:
    """Draw a boolean matrix; consecutive True elements of a row are one rectangle."""
    rows, columns = seen.shape
    field = node(
        "svg",
        x=left,
        y=_TOP,
        width=_MATRIX_SIZE,
        height=_MATRIX_SIZE,
        viewBox=f"0 0 {columns} {rows}",
        class_=kind,
        preserveAspectRatio="none",
    )
    field.append(node("rect", x=0, y=0, width=columns, height=rows, class_="field"))
    for y, row in enumerate(seen.tolist()):
        start = 0
        for value, run in groupby(row):
            length = len(list(run))
            if value:
                field.append(node("rect", x=start, y=y, width=length, height=1, class_="cell"))
            start += length
    return field


def patterns_svg_file(views: Sequence[PatternView]) -> str:
    """Render mask pictures below each other as an SVG file that follows the light or dark color scheme."""
    pictures = [pattern_svg(view) for view in views]
    heights = [int(picture.get("height", "0")) for picture in pictures]
    width = max(int(picture.get("width", "0")) for picture in pictures)
    whole = node("svg", viewBox=f"0 0 {width} {sum(heights)}", width=width, height=sum(heights))
    whole.append(style_sheet("colors", "pictures"))
    for i, picture in enumerate(pictures):
        picture.set("y", str(sum(heights[:i])))
        whole.append(picture)
    return to_svg(whole)


def pattern_text(view: PatternView) -> list[str]:
    """Draw a mask as text: a line per query, a block per key it attends to."""
    return ["".join("█" if seen else "·" for seen in row) for row in view.mask.tolist()]
