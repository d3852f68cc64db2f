"""The schema of approximations: spellings, and one clear line for what does not go together."""

import pytest

from transom.config.approximations import LinearAttentionConfig, LinformerConfig, NoApproximationConfig, NystromConfig, PerformerConfig
from transom.config.recipe import load_recipe
from transom.errors import ConfigError

FIELD = "model.attention.approximation"


def approximation(recipe: str, *overrides: str) -> object:
    return load_recipe(recipe, list(overrides))[0].model.attention.approximation


def test_a_word_or_a_table_names_it() -> None:
    assert approximation("python-stdlib") == NoApproximationConfig()
    assert approximation("python-stdlib", f"{FIELD}=none") == NoApproximationConfig()
    assert approximation("python-stdlib", f"{FIELD}=linear") == LinearAttentionConfig(feature_map="elu")
    assert approximation("copy", f"{FIELD}.kind=performer", f"{FIELD}.n_features=32") == PerformerConfig(n_features=32)
    assert approximation("languages", f'{FIELD}={{ kind = "linformer", rank = 8 }}') == LinformerConfig(rank=8)
    assert approximation("digits-vit", f"{FIELD}=nystrom") == NystromConfig()


@pytest.mark.parametrize(
    ("recipe", "overrides", "words"),
    [
        ("python-stdlib", [f"{FIELD}=linformer"], "'linformer' is not causal .* use 'linear' or 'performer'"),
        ("copy", [f"{FIELD}=nystrom"], "'nystrom' is not causal"),
        (
            "python-stdlib",
            [f"{FIELD}=linear", "model.attention.softcap=2.0"],
            "'linear' computes no attention scores, which softcap needs; remove one",
        ),
        ("python-stdlib", [f"{FIELD}=linear", "model.attention.sinks=true"], "'linear' computes no attention scores, which sinks needs"),
        (
            "languages",
            [f"{FIELD}=nystrom", "model.attention.pattern=window"],
            "'nystrom' computes no attention scores, which pattern needs",
        ),
        ("python-stdlib", [f"{FIELD}=performer", "model.position=alibi"], "no attention scores, to which position = 'alibi' adds a bias"),
        ("python-stdlib", [f"{FIELD}=performer", "model.position=relative"], "no attention scores, to which position = 'relative'"),
        ("python-stdlib", [f"{FIELD}=linear", "model.attention_dropout=0.1"], "expected attention_dropout = 0, found 0.1"),
        (
            "python-stdlib",
            [f"{FIELD}=linear", "model.depth=mod"],
            "'linear' cannot mask the tokens that depth = 'mod' skips",
        ),
        ("languages", [f"{FIELD}=nystrom", "model.depth=mod"], "'nystrom' cannot mask the tokens"),
        (
            "python-stdlib",
            [f"{FIELD}=linear", "model.mask=prefix-lm"],
            "keeps sums over earlier tokens: expected mask = 'causal', found 'prefix-lm'",
        ),
        ("python-stdlib", [f"{FIELD}=linera"], "expected one of 'none', 'linear', 'performer', 'linformer', 'nystrom', found 'linera'"),
        ("python-stdlib", [f'{FIELD}={{ kind = "linear", rank = 3 }}'], f"unknown field {FIELD}.rank; this field requires .*'linformer'"),
        ("python-stdlib", [f'{FIELD}={{ kind = "performer", n_features = 0 }}'], "expected a number greater than or equal to 1, found 0"),
    ],
)
def test_what_does_not_go_together_is_one_line(recipe: str, overrides: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        load_recipe(recipe, overrides)
    assert "\n" not in str(caught.value)
