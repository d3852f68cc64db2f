"""The report's attention: every cell has the number of the model, and the words say what is shown."""

from dataclasses import replace
from xml.etree.ElementTree import Element

import pytest
import torch

from tests.inspection.conftest import HOSTILE
from tests.inspection.pages.test_report import Page
from transom.inspection.pages.attention_section import MAX_HEADS, attention_section, describe_head
from transom.inspection.pages.markup import escape_control_characters, node, to_html
from transom.inspection.pages.report import render_report
from transom.inspection.pages.run_summary import RunSummary
from transom.inspection.sample_attention import NoAttention, PatchAttention, SamplePicture, TextAttention

TOKENS = ["[EOS]", "the", "dog", "barks"]


def text(n_heads: int = 2, **fields: object) -> TextAttention:
    torch.manual_seed(1)
    weights = torch.rand(n_heads, 4, 4).tril()
    weights = weights / weights.sum(-1, keepdim=True)
    found = TextAttention("decoder.blocks.1.attn", weights, TOKENS, TOKENS, 4, 4, 0.25, 6)
    return replace(found, **fields)  # type: ignore[arg-type]


def patches(**fields: object) -> PatchAttention:
    torch.manual_seed(1)
    shares = torch.rand(3, 2, 3) / 6
    picture = SamplePicture("data:image/png;base64,AAAA", "sound", from_bottom=True)
    return replace(PatchAttention("encoder.blocks.1.attn", shares[1:], shares[0], False, picture, True, 0.5, 4), **fields)  # type: ignore[arg-type]


def rendered(run: RunSummary, attention: object) -> tuple[Element, str]:
    """Return the section as an element, and its words."""
    section = node("div", *attention_section(replace(run, attention=attention)))  # type: ignore[arg-type]
    return section, Page(to_html(section)).text


def cells(picture: Element, kind: str = "cell") -> dict[str, float]:
    """Return the tooltip of each cell and its opacity."""
    rects = (rect for rect in picture.iter("rect") if rect.get("class") == kind and rect.find("title") is not None)
    return {str(rect.findtext("title")): float(rect.get("fill-opacity", "")) for rect in rects}


def test_every_cell_has_its_weight(run: RunSummary) -> None:
    found = text()
    section, words = rendered(run, found)
    mean, *heads = section.iter("svg")
    for picture, weights in zip([mean, *heads], [found.weights.mean(0), *found.weights], strict=True):
        expected = {
            f"{TOKENS[i]} ← {TOKENS[j]}: {float(weights[i, j]):.4g}": float(weights[i, j]) ** 0.5 for i in range(4) for j in range(4)
        }
        assert len(expected) == 16 and cells(picture) == pytest.approx(expected, abs=0.001)
    assert "decoder.blocks.1.attn: mean of its 2 heads" in words and "The weights of a row add up to 100%." in words
    assert "Certified: in all layers (6 maps) these weights give the output" in words and "0.25 times what" in words
    strongest = TOKENS[int(found.weights.mean(0)[3].argmax())]
    assert f"barks reads {strongest} (" in str(mean.findtext("desc"))


def test_what_is_not_shown_is_said(run: RunSummary) -> None:
    many, words = rendered(run, text(MAX_HEADS + 3, n_tokens=311))
    assert len(list(many.iter("svg"))) == 1 + MAX_HEADS and "mean of its 19 heads" in words
    assert "The first 16 heads." in words and "Only its first 4 of 311 tokens were read." in words
    for reason in ("recurrent", "convolutional", "unknown", "short"):
        assert rendered(run, NoAttention(reason))[1].endswith(".")  # type: ignore[arg-type]
    assert "it is a recurrent network" in rendered(run, NoAttention("recurrent"))[1]
    assert attention_section(replace(run, attention=None)) == []
    assert rendered(run, text(error=1.5))[1].count("Not certified") == 1
    broken = text()
    broken.weights[0, 0, 0] = torch.nan
    section, words = rendered(run, broken)
    assert "are not finite numbers" in words and not list(section.iter("svg"))


def test_sums_of_rows_are_those_of_the_weights(run: RunSummary) -> None:
    skipped = text()
    skipped.weights[:, 2] = 0
    assert "empty rows are tokens that skip this block" in rendered(run, skipped)[1]
    _, words = rendered(run, text(weights=text().weights * 0.9 - 0.8 * torch.eye(4), approximation="nystrom"))
    assert "need not add up to 100%" in words and "an approximation (nystrom)" in words and "Some of them are negative" in words


def test_a_pooled_text_shows_the_share_of_each_token(run: RunSummary) -> None:
    section, words = rendered(run, text(shares=torch.tensor([0.1, 0.2, 0.4, 0.3])))
    spans = {span.get("title"): span.get("style") for span in section.iter("span") if span.get("class") == "share"}
    assert spans == {f"{t}: 0.{s}": f"--share: {p}%" for t, s, p in zip(TOKENS, (1, 2, 4, 3), (25, 50, 100, 75), strict=True)}
    assert "vector that the model classifies" in words
    assert "Attention rollout is not shown" in rendered(run, text(no_shares=True))[1]


def test_heads_are_described() -> None:
    before = torch.zeros(5, 5)
    before[0, 0] = 1
    for i in range(1, 5):
        before[i, i - 1] = 1
    assert describe_head(before, is_self=True) == "100% on the token before; spreads over 1.0 tokens"
    assert describe_head(torch.full((4, 4), 0.25), is_self=True) == "spreads over 4.0 tokens"
    assert describe_head(torch.eye(4), is_self=False) == "spreads over 1.0 tokens"
    first = torch.tensor([[1.0, 0, 0], [0.5, 0.5, 0], [0.5, 0, 0.5]])
    assert describe_head(first, is_self=True) == "50% on the first token; spreads over 2.0 tokens"
    assert describe_head(torch.zeros(3, 3), is_self=True) == "no token"


def test_patches_are_covered_where_the_model_does_not_look(run: RunSummary) -> None:
    found = patches()
    assert found.shares is not None
    section, words = rendered(run, found)
    alone, rollout, *heads = section.iter("svg")
    assert not cells(alone, "cover") and alone.find("image") is not None and len(heads) == 2
    for picture, shares in zip([rollout, *heads], [found.shares, *found.weights], strict=True):
        expected = {  # the first row is at the bottom
            f"({2 - i}, {j + 1}): {float(shares[i, j]):.4g}": 0.88 * (1 - float(shares[i, j] / shares.max()))
            for i in range(2)
            for j in range(3)
        }
        assert cells(picture, "cover") == pytest.approx(expected, abs=0.001)
    assert "validation sample" in words and "The sound" in words and "frequency from low at the bottom" in words and "class token" in words


def test_hostile_tokens_stay_text(run: RunSummary) -> None:
    hostile = [HOSTILE, *TOKENS[1:]]
    section, words = rendered(run, text(queries=hostile, keys=hostile, shares=torch.full((4,), 0.25)))
    tame, _ = rendered(run, text(shares=torch.full((4,), 0.25)))
    assert {each.tag for each in section.iter()} == {each.tag for each in tame.iter()}
    assert escape_control_characters(HOSTILE) in words and "\x1b" not in words


def test_the_report_has_the_section(run: RunSummary) -> None:
    page = Page(render_report(replace(run, attention=NoAttention("recurrent"))))
    assert page.values("id").index("attention") == page.values("id").index("alignment") + 1
