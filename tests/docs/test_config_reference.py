"""docs/config.md and docs/bricks.md say what the schema says."""

from typing import get_args

from tests.size import ROOT
from transom.config.brick import Schema, listed, schemas
from transom.config.bricks import HEADS, PLACEMENTS, SCALINGS, DynamicTanh, Gated, MultiHead, Rotary
from transom.config.catalogue import catalogue, row
from transom.config.mixture import BiasBalance
from transom.config.model import Model, TextTransformer
from transom.config.patterns import Window2d
from transom.config.recurrent import Additive
from transom.config.reference import reference
from transom.config.registry import tasks
from transom.config.vision import Cbam


def test_the_pages_are_current() -> None:
    for name, page in (("config.md", reference), ("bricks.md", catalogue)):
        assert (ROOT / "docs" / name).read_text(encoding="utf-8") == page(), "run `make docs`"


def nested(schema: type[Schema]) -> set[type[Schema]]:
    """List a schema and all that its fields can hold, fields of these included."""
    found, waiting = set[type[Schema]](), [schema]
    while waiting:
        if (last := waiting.pop()) not in found:
            found.add(last)
            waiting += [below for field in last.model_fields.values() for below in (*schemas(field), *listed(field))]
    return found


def test_every_brick_of_a_network_has_a_line_however_deep_it_is() -> None:
    networks = set(schemas(Model))
    page, bricks = catalogue().splitlines(), set.union(*map(nested, networks)) - networks
    assert {Window2d, BiasBalance, Cbam, DynamicTanh, Gated, Additive} <= bricks
    assert not [brick.__name__ for brick in bricks if row(brick) not in page]


def test_every_choice_that_is_no_brick_has_a_line() -> None:
    assert set(PLACEMENTS) == set(get_args(TextTransformer.model_fields["norm_placement"].annotation))
    assert set(SCALINGS) == set(get_args(Rotary.model_fields["scaling"].annotation))
    plain = {f"attention.{name}" for name, field in MultiHead.model_fields.items() if not schemas(field)}
    biases_and_name = {"attention.bias", "attention.output_bias", "attention.kind"}
    assert set(HEADS) == {"n_kv_heads", "attention.qk_norm"} | plain - biases_and_name


def test_the_page_has_every_part_and_its_bounds() -> None:
    page = reference()
    assert "| `max_steps` | whole number, at least 1 | `20000` | optimizer steps |" in page
    assert '| `learning_rate` | number or `"paper"` |' in page
    assert "## `[training.optimizer]` of kind `adamw`" in page
    parts = [recipe.model_fields["data"].annotation.model_fields["train"] for recipe in tasks().values()]  # type: ignore[union-attr]
    kinds_of_files = {schema for part in parts for schema in schemas(part)}
    assert page.count("## `[data.train]`") == len(kinds_of_files) == 7
    assert page.count("## `[model.norm]` of kind `rmsnorm`") == 1, "what tasks share stands once"
    assert "| `files` | text or list of texts | required |" in page
