from dataclasses import replace
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import torch

from transom.decoding.predictors.results import Alignment
from transom.inspection.pages.alignment_pictures import alignment_svg, alignment_text
from transom.inspection.pages.markup import to_svg

SMALL = Alignment(("hello", "world"), ("hola", "mundo"), torch.tensor([[0.92, 0.08], [0.005, 0.6]]), "decoder layer 1 of 1")


def cells(picture: Element) -> list[Element]:
    """Find the shaded cells, those of the legend left out."""
    return [rect for rect in picture.iter("rect") if rect.get("class") == "cell" and rect.find("title") is not None]


def test_a_cell_for_each_weight_however_small() -> None:
    told = [(cell.findtext("title"), cell.get("fill-opacity")) for cell in cells(alignment_svg(SMALL))]
    assert told == [
        ("hola ← hello: 0.92", "0.92"),
        ("hola ← world: 0.08", "0.08"),
        ("mundo ← hello: 0.005", "0.005"),
        ("mundo ← world: 0.6", "0.6"),
    ]
    tiny = cells(alignment_svg(replace(SMALL, weights=torch.tensor([[1 / 3, 2e-7], [-0.125, 0.0]]))))
    assert [(str(cell.findtext("title")).split(": ")[1], cell.get("fill-opacity")) for cell in tiny] == [
        ("0.3333", "0.333"),
        ("2e-07", "0"),
        ("-0.125", "0"),
        ("0", "0"),
    ]


def test_rows_are_target_and_columns_source() -> None:
    first, second, third, fourth = cells(alignment_svg(SMALL))
    assert first.get("y") == second.get("y") and second.get("x") == fourth.get("x") and first.get("x") == third.get("x")
    assert float(fourth.get("y", "")) > float(first.get("y", "")) and float(second.get("x", "")) > float(first.get("x", ""))


def test_source_labels_are_turned() -> None:
    turned = [text.text for text in alignment_svg(SMALL).iter("text") if "rotate" in text.get("transform", "")]
    assert turned == ["hello", "world"]


def test_description_names_the_strongest() -> None:
    assert alignment_svg(SMALL).findtext("desc") == "hola from hello (92%); mundo from world (60%)."


def test_labels_of_data_are_text(alignment: Alignment) -> None:
    hostile = replace(alignment, source=("<script>", *alignment.source[1:]), target=('"><img>', *alignment.target[1:]))
    read = ElementTree.fromstring(to_svg(alignment_svg(hostile)))
    assert {element.tag.rpartition("}")[2] for element in read.iter()} == {"svg", "title", "desc", "rect", "text"}


def test_text_rendering_side_by_side() -> None:
    assert alignment_text(SMALL).split("\n") == [
        "       hello  world",
        " hola  █████",
        "mundo         ▓▓▓▓▓",
        "",
        "░░ > 10%  ▒▒ > 30%  ▓▓ > 55%  ██ > 80%   (decoder layer 1 of 1)",
    ]


def test_text_rendering_downwards_where_it_is_narrow() -> None:
    assert alignment_text(SMALL, width=16).split("\n")[:8] == [
        "       h  w",
        "       e  o",
        "       l  r",
        "       l  l",
        "       o  d",
        " hola  ██",
        "mundo     ▓▓",
        "",
    ]


def test_wide_characters_keep_the_columns_in_place() -> None:
    wide = Alignment(("世界", "x"), ("a",), torch.tensor([[0.0, 1.0]]), "o")
    assert alignment_text(wide).split("\n")[:2] == ["   世界  x", "a        ██"]


def test_a_terminal_obeys_nothing_in_a_symbol() -> None:
    drawn = alignment_text(replace(SMALL, source=("\x1b[2J", "a\nb")))
    assert "\x1b" not in drawn and "␛[2J" in drawn and "a b" in drawn
