"""The schemas of attention patterns: which of the tokens that a family lets a token see it looks at."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from transom.config.component_registry import register_component
from transom.config.schema import ComponentConfig, Slot

AnyBlockPattern = Annotated[ComponentConfig, Slot("pattern")]
"""Of one block."""

AnyPattern = Annotated[ComponentConfig, Slot("stack_pattern")]
"""Of one block, or of several in turn."""


@register_component("pattern", "stack_pattern")
class FullPatternConfig(ComponentConfig):
    """Every token sees all that its family lets it see (Vaswani et al. 2017, section 3.2).

    An image's patches are such tokens, counted row by row: in a row of n patches ``window`` with size n is the row and ``strided`` with
    stride n the column (axial attention, Ho et al. 2019). A classification token sees all and all see it, whatever the pattern.

    Cost and use: Work grows with the square of the length; the best quality, and at some thousand tokens still cheap.
    """

    kind: Literal["full"] = "full"


@register_component("pattern", "stack_pattern")
class WindowPatternConfig(ComponentConfig):
    """A sliding window (Beltagy et al. 2020, section 3.1; Jiang et al. 2023, section 2): token i sees j where -size < j - i < size.

    A decoder's window ends at the token itself, which leaves its last ``size`` tokens. Layers on top of each other see as many windows far.

    Cost and use: size pairs per token; local syntax loses next to nothing, long recall needs full layers between (Gemma: 5 of 6).
    """

    kind: Literal["window"] = "window"
    size: int = Field(256, ge=1, description="tokens to a side, the token itself among them")


@register_component("pattern", "stack_pattern")
class Window2dPatternConfig(ComponentConfig):
    """A square window on an image (Ramachandran et al. 2019, section 3.1): a patch sees those fewer than size rows and columns away.

    At the edges of the image the window is cut off.

    Cost and use: (2 size - 1)^2 pairs a patch; what is near on the image, as a convolution has it. For images only.
    """

    kind: Literal["window-2d"] = "window-2d"
    size: int = Field(4, ge=1, description="patches to each side, the patch itself among them")


@register_component("pattern", "stack_pattern")
class StridedPatternConfig(ComponentConfig):
    """Every stride-th token, counted back from the token itself (Child et al. 2019, section 4.2, A^(2)): (i - j) mod stride = 0.

    Cost and use: n / stride pairs per token; with a window of size stride in the next layer any token is two steps away.
    """

    kind: Literal["strided"] = "strided"
    stride: int = Field(128, ge=1, description="about the square root of the length")


@register_component("pattern", "stack_pattern")
class BlockLocalPatternConfig(ComponentConfig):
    """The token's own block (Child et al. 2019, section 4.3, A^(1)): floor(i / size) = floor(j / size).

    Cost and use: size / 2 pairs per token of a decoder; goes with summary, whose columns carry what other blocks hold.
    """

    kind: Literal["block-local"] = "block-local"
    size: int = Field(128, ge=1, description="tokens of a block")


@register_component("pattern", "stack_pattern")
class SummaryPatternConfig(ComponentConfig):
    """The last columns of every block (Child et al. 2019, section 4.3, A^(2)): j mod stride >= stride - columns.

    Cost and use: n * columns / stride pairs per token; better than strided where the data have no period, as text has none.
    """

    kind: Literal["summary"] = "summary"
    stride: int = Field(128, ge=1, description="tokens of a block")
    columns: int = Field(8, ge=1, description="last tokens of a block, which all later ones see (8 to 32 in the paper)")

    @model_validator(mode="after")
    def _columns_fit(self) -> "SummaryPatternConfig":
        if self.columns > self.stride:
            raise ValueError(f"expected at most as many columns as stride, found {self.columns} and {self.stride}")
        return self


@register_component("pattern", "stack_pattern")
class LogSparsePatternConfig(ComponentConfig):
    """Near tokens, and those at distances 1, 2, 4, 8, ... (Li et al. 2019, section 4.2): |i - j| < window or a power of two.

    Cost and use: log n pairs per token; after log n layers every token has reached every other. For long series.
    """

    kind: Literal["logsparse"] = "logsparse"
    window: int = Field(16, ge=1, description="nearest tokens to a side that are all seen, the token itself among them")


@register_component("pattern", "stack_pattern")
class GlobalPatternConfig(ComponentConfig):
    """Tokens at the start that see all and that all see (Beltagy et al. 2020, section 3.1; Zaheer et al. 2020, section 2, ITC).

    Cost and use: size pairs per token; joined with a window it keeps a text's first symbol, or an attention sink, in sight.
    """

    kind: Literal["global"] = "global"
    size: int = Field(1, ge=1, description="tokens at the start of each text")


@register_component("pattern", "stack_pattern")
class RandomPatternConfig(ComponentConfig):
    """Blocks that are joined at random (Zaheer et al. 2020, section 2): each block with some of those before it, both ways.

    The draw is a function of the seed and the numbers of the two blocks, the same at any length and in a decoder's steps. In the paper
    each block draws from all blocks of the text.

    Cost and use: blocks * size pairs per token; with window and global it is BigBird, which reaches everything in few layers.
    """

    kind: Literal["random"] = "random"
    blocks: int = Field(3, ge=1, le=64, description="blocks before its own that a block draws; one may be drawn twice")
    size: int = Field(64, ge=1, description="tokens of a block")
    seed: int = Field(1, ge=0, lt=2**31, description="of the draw")


@register_component("pattern", "stack_pattern")
class PrefixPatternConfig(ComponentConfig):
    """The prefix of the token's own text, such as a prompt: token i sees j where j is in it.

    The batch marks its tokens: an instruction's prompt; other texts, including translations, have none. When a decoder continues a prompt,
    the prefix is the prompt without its last token.

    Cost and use: prefix pairs per token; joined with a window it keeps a prompt in sight of all that follows.
    """

    kind: Literal["prefix"] = "prefix"


class CompoundPatternConfig(ComponentConfig):
    """Base schema of combinations of patterns."""

    patterns: tuple[AnyBlockPattern, ...] = Field(
        strict=False, description='patterns, as in patterns = ["window", { kind = "global", size = 2 }]; one may stand alone'
    )

    @field_validator("patterns", mode="before")
    @classmethod
    def _each_spelled_out(cls, value: Any) -> Any:
        patterns = value if isinstance(value, list | tuple) else [value]
        if not patterns:
            raise ValueError("expected at least one pattern, found none")
        return [{"kind": pattern} if isinstance(pattern, str) else pattern for pattern in patterns]


@register_component("pattern", "stack_pattern")
class CombinedPatternConfig(CompoundPatternConfig):
    """Patterns put together: a token is seen where any, all or none (not) of them let it be seen.

    Cost and use: Any costs as much as its parts together; all, as the cheapest of them; not, what it leaves.
    """

    kind: Literal["any", "all", "not"]


@register_component("stack_pattern")
class CyclePatternConfig(CompoundPatternConfig):
    """A pattern a layer: block k has pattern k mod n (Gemma Team 2024, section 2: window and full in turn).

    In a recipe a list is short for it: ``pattern = ["window", "full"]``.

    Cost and use: The mean of its patterns' costs; full sight in one layer of two to six keeps what windows alone would lose.
    """

    kind: Literal["cycle"]


def block_patterns(pattern: AnyPattern) -> tuple[AnyBlockPattern, ...]:
    """List the patterns that the blocks of a stack have in turn."""
    return pattern.patterns if isinstance(pattern, CyclePatternConfig) else (pattern,)


Coverage = Literal["none", "some", "all"]


def pattern_coverage(pattern: AnyBlockPattern, prefix_coverage: Coverage) -> Coverage:
    """Return how much of a text a pattern lets attend, if ``prefix`` covers ``prefix_coverage``.

    >>> pattern_coverage(CombinedPatternConfig(kind="any", patterns=(PrefixPatternConfig(), WindowPatternConfig())), "none")
    'some'
    >>> pattern_coverage(CombinedPatternConfig(kind="not", patterns=(FullPatternConfig(),)), "none")
    'none'
    """
    if not isinstance(pattern, CombinedPatternConfig):
        return prefix_coverage if pattern.kind == "prefix" else "all" if pattern.kind == "full" else "some"
    parts = {pattern_coverage(part, prefix_coverage) for part in pattern.patterns}
    match pattern.kind:
        case "any":
            return "all" if "all" in parts else "none" if parts == {"none"} else "some"
        case "all":
            return "none" if "none" in parts else "all" if parts == {"all"} else "some"
        case "not":
            return "none" if "all" in parts else "all" if parts == {"none"} else "some"


def pattern_kinds(pattern: AnyPattern) -> set[str]:
    """Name the kinds of a pattern and of all that it is put together of."""
    below = [pattern_kinds(part) for part in pattern.patterns] if isinstance(pattern, CompoundPatternConfig) else []
    return {pattern.kind}.union(*below)


def format_pattern(pattern: AnyPattern) -> str:
    """Write a pattern as people read it.

    >>> format_pattern(CombinedPatternConfig(kind="any", patterns=(WindowPatternConfig(size=3), GlobalPatternConfig())))
    'any(window(size=3), global(size=1))'
    """
    parts = [format_pattern(part) for part in pattern.patterns] if isinstance(pattern, CompoundPatternConfig) else []
    fields = [] if isinstance(pattern, CompoundPatternConfig) else [f"{name}={value}" for name, value in pattern if name != "kind"]
    return pattern.kind + (f"({', '.join([*parts, *fields])})" if parts or fields else "")
