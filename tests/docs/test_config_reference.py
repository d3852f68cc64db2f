"""docs/config.md and docs/bricks.md say what the schema says."""

from typing import get_args

from tests.size import ROOT
from transom.config.brick import schemas
from transom.config.bricks import PLACEMENTS
from transom.config.catalogue import RECURRENT_TITLES, TITLES, catalogue
from transom.config.model import Decoder, TextTransformer
from transom.config.recipe import TASKS
from transom.config.recurrent import RecurrentSeq2Seq
from transom.config.reference import reference
from transom.config.vision import VisionTransformer


def test_the_pages_are_current() -> None:
    for name, page in (("config.md", reference), ("bricks.md", catalogue)):
        assert (ROOT / "docs" / name).read_text(encoding="utf-8") == page(), "run `make docs`"


def test_every_brick_of_a_block_is_in_the_catalogue() -> None:
    assert set(PLACEMENTS) == set(get_args(TextTransformer.model_fields["norm_placement"].annotation))
    fields = {
        name
        for model in (TextTransformer, Decoder, VisionTransformer)
        for name, field in model.model_fields.items()
        if schemas(field.annotation)
    }
    assert set(TITLES) == {*fields, "stem.attention"}
    recurrent = {name for name, field in RecurrentSeq2Seq.model_fields.items() if schemas(field.annotation)}
    assert set(RECURRENT_TITLES) == recurrent


def test_the_page_has_every_part_and_its_bounds() -> None:
    page = reference()
    assert "| `max_steps` | whole number, at least 1 | `20000` | optimizer steps |" in page
    assert '| `learning_rate` | number or `"paper"` |' in page
    assert "## `[training.optimizer]` of kind `adamw`" in page
    parts = [recipe.model_fields["data"].annotation.model_fields["train"] for recipe in TASKS.values()]  # type: ignore[union-attr]
    kinds_of_files = {schema for part in parts for schema in schemas(part.annotation)}
    assert page.count("## `[data.train]`") == len(kinds_of_files) == 5
    assert page.count("## `[model.norm]` of kind `rmsnorm`") == 1, "what tasks share stands once"
    assert "| `files` | text or list of texts | required |" in page
