"""Schemas of attention patterns: sparsity patterns within the mask of a model family."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from transom.config.component_registry import register_component
from transom.config.schema import ComponentConfig, Slot

AnyBlockPattern = Annotated[ComponentConfig, Slot("pattern")]
"""Pattern of one block."""

AnyPattern = Annotated[ComponentConfig, Slot("stack_pattern")]
"""Pattern of one block, or a cycle of patterns over the blocks of a stack."""


@register_component("pattern", "stack_pattern")
class FullPatternConfig(ComponentConfig):
    """Full attention: each token attends to all tokens that the model family's mask allows (Vaswani et al. 2017, section 3.2).

    The patches of an image are a sequence in row-major order. For n patches per row, ``window`` with size n covers the row and ``strided``
    with stride n the column (axial attention, Ho et al. 2019). A classification token attends to all patches and all attend to it, whatever
    the pattern.

    Cost and use: Quadratic in the length; the best quality, and still cheap at a few thousand tokens.
    """

    kind: Literal["full"] = "full"


@register_component("pattern", "stack_pattern")
class WindowPatternConfig(ComponentConfig):
    """Sliding window (Beltagy et al. 2020, section 3.1; Jiang et al. 2023, section 2): token i attends to j if -size < j - i < size.

    In a decoder the window ends at token i and covers the last ``size`` tokens. Through a stack of n layers, a token depends on tokens n
    windows away.

    Cost and use: size keys per query. Local syntax loses almost nothing; long-range recall needs some full layers (Gemma: one in six).
    """

    kind: Literal["window"] = "window"
    size: int = Field(256, ge=1, description="tokens per side, including the token itself")


@register_component("pattern", "stack_pattern")
class Window2dPatternConfig(ComponentConfig):
    """Square window on an image (Ramachandran et al. 2019, section 3.1): patches less than ``size`` rows and columns away.

    The window is cut off at the edges of the image.

    Cost and use: (2 size - 1)^2 keys per query; local like a convolution. For images only.
    """

    kind: Literal["window-2d"] = "window-2d"
    size: int = Field(4, ge=1, description="patches per side, including the patch itself")


@register_component("pattern", "stack_pattern")
class StridedPatternConfig(ComponentConfig):
    """Every stride-th token, counted back from token i (Child et al. 2019, section 4.2, A^(2)): (i - j) mod stride = 0.

    Cost and use: n / stride keys per query. With a window of size stride in the next layer, two layers reach every token.
    """

    kind: Literal["strided"] = "strided"
    stride: int = Field(128, ge=1, description="distance between visible tokens; the paper uses about the square root of the length")


@register_component("pattern", "stack_pattern")
class BlockLocalPatternConfig(ComponentConfig):
    """Block-local attention: the block that contains the token (Child et al. 2019, section 4.3, A^(1)): floor(i / size) = floor(j / size).

    Cost and use: size / 2 keys per query in a decoder. Combine it with summary, which gives access to other blocks.
    """

    kind: Literal["block-local"] = "block-local"
    size: int = Field(128, ge=1, description="tokens per block")


@register_component("pattern", "stack_pattern")
class SummaryPatternConfig(ComponentConfig):
    """The last ``columns`` tokens of every block (Child et al. 2019, section 4.3, A^(2)): j mod stride >= stride - columns.

    Cost and use: n * columns / stride keys per query; better than strided on data without a period, such as text.
    """

    kind: Literal["summary"] = "summary"
    stride: int = Field(128, ge=1, description="tokens per block")
    columns: int = Field(8, ge=1, description="tokens at the end of each block that all later tokens attend to (8 to 32 in the paper)")

    @model_validator(mode="after")
    def _columns_fit(self) -> "SummaryPatternConfig":
        if self.columns > self.stride:
            raise ValueError(f"expected columns <= stride, found {self.columns} and {self.stride}; change one of them")
        return self


@register_component("pattern", "stack_pattern")
class LogSparsePatternConfig(ComponentConfig):
    """Nearby tokens and those at distances 1, 2, 4, 8, ... (Li et al. 2019, section 4.2): |i - j| < window or a power of two.

    Cost and use: log n keys per query; log n layers connect all tokens. For long series.
    """

    kind: Literal["logsparse"] = "logsparse"
    window: int = Field(16, ge=1, description="nearest tokens per side that are all visible, including the token itself")


@register_component("pattern", "stack_pattern")
class GlobalPatternConfig(ComponentConfig):
    """Global tokens at the start: they attend to all tokens and all attend to them (Beltagy et al. 2020; Zaheer et al. 2020, ITC).

    Cost and use: size keys per query. Combined with a window, the first token, often an attention sink, stays visible.
    """

    kind: Literal["global"] = "global"
    size: int = Field(1, ge=1, description="tokens at the start of each text")


@register_component("pattern", "stack_pattern")
class RandomPatternConfig(ComponentConfig):
    """Random blocks (Zaheer et al. 2020, section 2): each block attends to some earlier blocks, and those attend to it.

    The draw depends only on the seed and the indices of the two blocks, so it is the same at every length and in incremental decoding. In
    the paper each block draws from all blocks of the text.

    Cost and use: blocks * size keys per query. Combined with window and global, this is BigBird, in which a few layers connect all tokens.
    """

    kind: Literal["random"] = "random"
    blocks: int = Field(3, ge=1, le=64, description="earlier blocks drawn per block, with replacement")
    size: int = Field(64, ge=1, description="tokens per block")
    seed: int = Field(1, ge=0, lt=2**31, description="seed of the draw")


@register_component("pattern", "stack_pattern")
class PrefixPatternConfig(ComponentConfig):
    """The prefix of the token's text, such as a prompt: token i attends to j if j is in the prefix.

    The batch marks the prefix: for an instruction, its prompt. Other texts, including translations, have no prefix. When a decoder
    continues a prompt, the prefix is the prompt without its last token.

    Cost and use: As many keys per query as the prefix has tokens. Combined with a window, the prompt stays visible to all later tokens.
    """

    kind: Literal["prefix"] = "prefix"


class CompoundPatternConfig(ComponentConfig):
    """Base schema of combinations of patterns."""

    patterns: tuple[AnyBlockPattern, ...] = Field(
        strict=False, description='patterns, as in patterns = ["window", { kind = "global", size = 2 }], or a single pattern'
    )

    @field_validator("patterns", mode="before")
    @classmethod
    def _expand_names(cls, value: Any) -> Any:
        patterns = value if isinstance(value, list | tuple) else [value]
        if not patterns:
            raise ValueError("expected at least one pattern, found none")
        return [{"kind": pattern} if isinstance(pattern, str) else pattern for pattern in patterns]


@register_component("pattern", "stack_pattern")
class CombinedPatternConfig(CompoundPatternConfig):
    """Combination of patterns: a token is visible if any, all or none (not) of them allow it.

    Cost and use: any costs at most the sum of its parts, all at most its cheapest part, not the query-key pairs that its parts exclude.
    """

    kind: Literal["any", "all", "not"]


@register_component("stack_pattern")
class CyclePatternConfig(CompoundPatternConfig):
    """One pattern per layer: block k has pattern k mod n (Gemma Team 2024, section 2: alternating window and full attention).

    A recipe can write it as a list: ``pattern = ["window", "full"]``.

    Cost and use: The mean cost of its patterns. Full attention in one layer of two to six keeps the recall that windows alone lose.
    """

    kind: Literal["cycle"]


def block_patterns(pattern: AnyPattern) -> tuple[AnyBlockPattern, ...]:
    """Return the patterns of the first blocks of a stack; later blocks repeat them in order."""
    return pattern.patterns if isinstance(pattern, CyclePatternConfig) else (pattern,)


Coverage = Literal["none", "some", "all"]


def pattern_coverage(pattern: AnyBlockPattern, prefix_coverage: Coverage) -> Coverage:
    """Return whether a pattern makes none, some or all tokens of a text visible; ``prefix_coverage`` states it for pattern ``prefix``.

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
    """Return the kinds of a pattern and of all its parts."""
    below = [pattern_kinds(part) for part in pattern.patterns] if isinstance(pattern, CompoundPatternConfig) else []
    return {pattern.kind}.union(*below)


def format_pattern(pattern: AnyPattern) -> str:
    """Format a pattern in readable form.

    >>> format_pattern(CombinedPatternConfig(kind="any", patterns=(WindowPatternConfig(size=3), GlobalPatternConfig())))
    'any(window(size=3), global(size=1))'
    """
    parts = [format_pattern(part) for part in pattern.patterns] if isinstance(pattern, CompoundPatternConfig) else []
    fields = [] if isinstance(pattern, CompoundPatternConfig) else [f"{name}={value}" for name, value in pattern if name != "kind"]
    return pattern.kind + (f"({', '.join([*parts, *fields])})" if parts or fields else "")
