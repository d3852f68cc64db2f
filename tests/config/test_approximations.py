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
        ("python-stdlib", [f"{FIELD}=linformer"], "'linformer' is for encoders alone: .* take 'linear' or 'performer'"),
        ("copy", [f"{FIELD}=nystrom"], "'nystrom' is for encoders alone"),
        ("python-stdlib", [f"{FIELD}=linear", "model.attention.softcap=2.0"], "'linear' has no scores for softcap to act on; remove one"),
        ("python-stdlib", [f"{FIELD}=linear", "model.attention.sinks=true"], "'linear' has no scores for sinks to act on"),
        ("languages", [f"{FIELD}=nystrom", "model.attention.pattern=window"], "'nystrom' has no scores for pattern to act on"),
        ("python-stdlib", [f"{FIELD}=performer", "model.position=alibi"], "no scores for position = 'alibi' to be added to"),
        ("python-stdlib", [f"{FIELD}=performer", "model.position=relative"], "no scores for position = 'relative'"),
        ("python-stdlib", [f"{FIELD}=linear", "model.attention_dropout=0.1"], "expected attention_dropout = 0, found 0.1"),
        (
            "python-stdlib",
            [f"{FIELD}=linear", "model.depth=mod"],
            "'linear' has no scores to hide the tokens from that depth = 'mod'",
        ),
        ("languages", [f"{FIELD}=nystrom", "model.depth=mod"], "'nystrom' has no scores to hide the tokens from"),
        (
            "python-stdlib",
            [f"{FIELD}=linear", "model.mask=prefix-lm"],
            "keeps sums of what came before: expected mask = 'causal', found 'prefix-lm'",
        ),
        ("python-stdlib", [f"{FIELD}=linera"], "expected one of 'none', 'linear', 'performer', 'linformer', 'nystrom', found 'linera'"),
        ("python-stdlib", [f'{FIELD}={{ kind = "linear", rank = 3 }}'], f"unknown field {FIELD}.rank; it goes with .*'linformer'"),
        ("python-stdlib", [f'{FIELD}={{ kind = "performer", n_features = 0 }}'], "expected a number greater than or equal to 1, found 0"),
    ],
)
def test_what_does_not_go_together_is_one_line(recipe: str, overrides: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        load_recipe(recipe, overrides)
    assert "\n" not in str(caught.value)
