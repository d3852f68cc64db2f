"""docs/presets.md: current, one row per preset, and the articles' table of language models beside the published numbers."""

import pytest

from tests.size import ROOT
from transom.config.presets import load_presets
from transom.lab.examples import ERRATUM, load_examples
from transom.lab.preset_page import LANGUAGE_MODELS, gpt3_shapes, preset_page
from transom.planning.presets import compare_preset


@pytest.fixture(scope="module")
def page() -> str:
    return preset_page()


def test_the_page_is_current(page: str) -> None:
    assert (ROOT / "docs" / "presets.md").read_text(encoding="utf-8") == page, "run `make docs`"


def test_every_preset_has_a_row_with_its_counts(page: str) -> None:
    families = page.split("## The articles' table")[0]
    for name, preset in load_presets().items():
        rows = [line for line in families.splitlines() if line.startswith(f"| `{name}` |")]
        assert len(rows) == 1 and f" {compare_preset(preset).count.total:,}" in rows[0], name
        assert f"\n## {preset.source}\n" in families


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_the_articles_table_of_language_models_is_that_of_the_presets(name: str, page: str) -> None:
    """Parameters within 2 % of the printed ones, with what is missing; tokens as published, or none are published and the page says so."""
    preset, examples = load_presets()[LANGUAGE_MODELS[name]], load_examples()
    unit = 1e6 if name == "gpt" else 1e9
    printed = {part: float(str(examples[f"002-{name}-{part}"].printed)) for part in ("parameters", "billions", "ratio", "year")}
    ours = compare_preset(preset).comparable + sum(each.parameters for each in preset.missing)
    rel = 0.04 if name == "gpt2" else 0.02  # the article rounds 1.542, as the paper prints, to 1.5
    assert ours == pytest.approx(printed["parameters"] * unit, rel=rel)
    assert preset.parameters == pytest.approx(printed["parameters"] * unit, rel=0.03)
    if preset.training_tokens is None:
        assert name in ("gpt", "gpt2")
        assert f"- Line {examples[f'002-{name}-tokens'].lines[0]}, " in page
    else:
        assert preset.training_tokens == printed["billions"] * 1e9
        assert preset.training_tokens / (printed["parameters"] * unit) == pytest.approx(printed["ratio"], abs=0.006)
    year = next(word for word in preset.source.replace(",", " ").split() if word.isdecimal())
    assert (int(year) == printed["year"]) == (examples[f"002-{name}-year"].verdict != ERRATUM), "GPT-2 was published in 2019"


def test_the_page_lists_the_errors_of_the_table(page: str) -> None:
    errors = page.split("The article is wrong, or")[1].split("\n## ")[0]
    for words in ("GPT-2 was published in February 2019", "about ten billion tokens", "describes a dense one", "counts words"):
        assert words in errors


def test_gpt3_has_the_shapes_of_article_003() -> None:
    rounded = {"50000": "50257", "617": "617.6"}
    assert [(rounded.get(printed, printed), ours) for _, printed, ours in gpt3_shapes()] == [(ours, ours) for _, _, ours in gpt3_shapes()]
    assert [ours for _, _, ours in gpt3_shapes()][1:3] == ["12288", "2048"]
