"""Patterns as a recipe spells them, and what is said of one that is wrong."""

from typing import Any

import pytest

from transom.config.components import MultiHeadAttentionConfig
from transom.config.patterns import (
    CombinedPatternConfig,
    CyclePatternConfig,
    FullPatternConfig,
    GlobalPatternConfig,
    PrefixPatternConfig,
    StridedPatternConfig,
    WindowPatternConfig,
    block_patterns,
)
from transom.config.recipe import load_recipe
from transom.errors import ConfigError


def read(value: str) -> Any:
    """Set the pattern of a packaged recipe."""
    return load_recipe("copy", [f"model.attention.pattern={value}"])[0].model.attention.pattern


@pytest.mark.parametrize(
    "value, expected",
    [
        ("full", FullPatternConfig()),
        ("window", WindowPatternConfig()),
        ('{ kind = "window", size = 3 }', WindowPatternConfig(size=3)),
        ("{ }", FullPatternConfig()),
        ('["window", "full"]', CyclePatternConfig(kind="cycle", patterns=(WindowPatternConfig(), FullPatternConfig()))),
        ('{ kind = "cycle", patterns = "strided" }', CyclePatternConfig(kind="cycle", patterns=(StridedPatternConfig(),))),
        (
            '{ kind = "not", patterns = { kind = "global", size = 2 } }',
            CombinedPatternConfig(kind="not", patterns=(GlobalPatternConfig(size=2),)),
        ),
        (
            '{ kind = "any", patterns = ["window", { kind = "all", patterns = ["strided", "global"] }] }',
            CombinedPatternConfig(
                kind="any",
                patterns=(
                    WindowPatternConfig(),
                    CombinedPatternConfig(kind="all", patterns=(StridedPatternConfig(), GlobalPatternConfig())),
                ),
            ),
        ),
    ],
)
def test_every_spelling(value: str, expected: Any) -> None:
    found = read(value)
    assert found == expected
    component = MultiHeadAttentionConfig(pattern=found)
    assert (
        MultiHeadAttentionConfig.model_validate(component.model_dump())
        == component
        == MultiHeadAttentionConfig.model_validate_json(component.model_dump_json())
    )


@pytest.mark.parametrize(
    "value, message",
    [
        ("windw", "pattern: expected one of 'full', 'window', .* found 'windw'"),
        ('{ kind = "any", patterns = ["windw"] }', r"pattern.patterns: expected one of 'full', .* found \['windw'\]"),
        ('{ kind = "any", patterns = [] }', "pattern.patterns: expected at least one pattern, found none"),
        ("[]", "pattern.*: expected at least one pattern, found none"),
        ('["window", ["full"]]', "pattern: expected a table"),
        ('{ kind = "all", patterns = ["cycle"] }', "pattern.patterns: expected one of 'full'"),
        ('{ kind = "window", size = 0 }', "pattern.size: expected a number greater than or equal to 1, found 0"),
        ('{ kind = "window", stride = 3 }', "unknown field model.attention.pattern.stride; this field requires .*'strided' or 'summary'"),
        ("window-2d", "expected a pattern for text, found 'window-2d', which is for images; use 'window'"),
        ('["full", { kind = "not", patterns = "window-2d" }]', "expected a pattern for text, found 'window-2d'"),
        ('{ kind = "summary", stride = 3 }', "expected columns <= stride, found 8 and 3"),
        ("prefix", "visible tokens in a text of task 'translation', found prefix, which masks all tokens"),
        (
            '["full", { kind = "all", patterns = ["window", "prefix"] }]',
            r"found all\(window\(size=256\), prefix\), which masks all",
        ),
        ('{ kind = "not", patterns = "full" }', r"found not\(full\), which masks all"),
    ],
)
def test_what_is_wrong_is_said(value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(value)


def test_prompts_have_a_prefix_to_see_and_plain_text_none_to_learn_from() -> None:
    given = ["model.attention.pattern=prefix"]
    assert load_recipe("exercises", given)[0].model.attention.pattern == PrefixPatternConfig()
    with pytest.raises(ConfigError, match="found prefix, which masks all tokens"):
        load_recipe("python-stdlib", given)
    with pytest.raises(ConfigError, match="expected 'causal' for task 'language', found 'prefix-lm'"):
        load_recipe("python-stdlib", ["model.mask=prefix-lm"])


def test_blocks_have_patterns_in_turn() -> None:
    assert block_patterns(WindowPatternConfig()) == (WindowPatternConfig(),)
    assert block_patterns(CyclePatternConfig(kind="cycle", patterns=(WindowPatternConfig(), FullPatternConfig()))) == (
        WindowPatternConfig(),
        FullPatternConfig(),
    )
