"""``transom recipes patterns``: what a recipe's layers see, in the terminal, as JSON and as a file."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.cli.conftest import Call

WINDOW = ("--set", "model.attention.pattern=[{ kind = 'window', size = 2 }, 'full']")


def test_a_pattern_is_drawn_told_and_counted(transom: Call, tmp_path: Path) -> None:
    shown = transom("recipes", "patterns", "shakespeare-char", *WINDOW, "--length", 4).out
    assert "window(size=2), 43.8% of the pairs, 70.0% of the allowed pairs\n\n█···\n██··\n·██·\n··██\n" in shown
    found = transom("recipes", "patterns", "shakespeare-char", *WINDOW, "--length", 4, "--json").json["patterns"]
    assert [each["density"] for each in found] == [7 / 16, 10 / 16] and found[1]["pattern"] == "full" and found[0]["layers"][:2] == [0, 2]
    out = tmp_path / "patterns.svg"
    drawn = transom("recipes", "patterns", "cifar10-vit", "--set", "model.attention.pattern=window-2d", "--out", out).out
    assert drawn.splitlines()[-1] == f"drawn in {out}" and "window-2d(size=4)" in drawn
    assert len(list(ElementTree.parse(out).getroot().iter("{http://www.w3.org/2000/svg}rect"))) > 64


@pytest.mark.parametrize("recipe", ["translation", "text-bpe", "text-classes", "instructions"])
def test_a_recipe_need_not_say_where_its_data_are(recipe: str, transom: Call) -> None:
    assert "█" in transom("recipes", "patterns", recipe, "--length", 4).out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("copy", "--set", "data.train={ pairs = 'a.tsv' }"), "expected exactly one of data.train, data.generate"),
        (("phrasebok",), "did you mean phrasebook"),
        (("phrasebook-lstm",), "expected a Transformer, found model.kind = 'recurrent-seq2seq'"),
        (("phrasebook", "--set", "model.attention.pattern=window-2d"), "'window-2d', which is for images"),
        (("images", "--set", "model.image_size=512"), "expected at most 512 tokens to draw, found 4096"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(arguments: tuple[str, ...], message: str, transom: Call) -> None:
    assert message in transom("recipes", "patterns", *arguments).error
