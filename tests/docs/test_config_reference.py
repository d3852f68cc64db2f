"""docs/config.md and docs/components.md agree with the schemas."""

import re
import tomllib
from itertools import islice, takewhile
from typing import get_args

from pydantic import ValidationError

from tests.size import ROOT
from transom.config.component_docs import component_page, row
from transom.config.components import (
    ATTENTION_OPTIONS,
    NORM_PLACEMENTS,
    DynamicTanhConfig,
    GatedFeedForwardConfig,
    MultiHeadAttentionConfig,
)
from transom.config.config_docs import config_page, schema_section
from transom.config.model import AnyModel, TextTransformerConfig
from transom.config.moe import BiasBalancingConfig
from transom.config.patterns import Window2dPatternConfig
from transom.config.recurrent import AdditiveAttentionConfig
from transom.config.schema import ComponentConfig, Schema, allowed_schemas, list_item_schemas
from transom.config.task_registry import recipes_by_task
from transom.config.vision import CbamConfig


def test_the_pages_are_current() -> None:
    for name, page in (("config.md", config_page), ("components.md", component_page)):
        assert (ROOT / "docs" / name).read_text(encoding="utf-8") == page(), "run `make docs`"


def nested(schema: type[Schema]) -> set[type[Schema]]:
    """List a schema and all that its fields can hold, fields of these included."""
    found, waiting = set[type[Schema]](), [schema]
    while waiting:
        if (last := waiting.pop()) not in found:
            found.add(last)
            waiting += [below for field in last.model_fields.values() for below in (*allowed_schemas(field), *list_item_schemas(field))]
    return found


def test_every_component_of_a_network_has_a_line_however_deep_it_is() -> None:
    networks = set(allowed_schemas(AnyModel))
    page, components = component_page().splitlines(), set.union(*map(nested, networks)) - networks
    assert {
        Window2dPatternConfig,
        BiasBalancingConfig,
        CbamConfig,
        DynamicTanhConfig,
        GatedFeedForwardConfig,
        AdditiveAttentionConfig,
    } <= components
    assert not [component.__name__ for component in components if row(component) not in page]


def test_every_choice_that_is_no_component_has_a_line() -> None:
    assert set(NORM_PLACEMENTS) == set(get_args(TextTransformerConfig.model_fields["norm_placement"].annotation))
    plain = {f"attention.{name}" for name, field in MultiHeadAttentionConfig.model_fields.items() if not allowed_schemas(field)}
    biases_and_name = {"attention.qkv_bias", "attention.output_bias", "attention.kind"}
    assert set(ATTENTION_OPTIONS) == {"n_kv_heads", "attention.qk_norm"} | plain - biases_and_name


def stated_defaults(schema: type[Schema]) -> dict[str, str]:
    """Read the table of a class as a reader would: the default of each field as TOML, without those that are computed."""
    rows = list(takewhile(bool, islice(schema_section(schema, (), set()), 4, None)))
    cells = {row.split("`")[1]: re.split(r"(?<!\\)\|", row)[3].strip() for row in rows}
    return {name: cell.strip("`") for name, cell in cells.items() if cell.startswith("`")}


def test_each_default_of_the_page_is_what_the_schema_fills_in() -> None:
    checked = 0
    for schema in set.union(*map(nested, recipes_by_task().values())):
        stated = stated_defaults(schema)
        try:
            filled_in = schema()
        except ValidationError:  # it has required fields
            continue
        for name, default in stated.items():
            value = tomllib.loads(f"value = {default}")["value"]
            expected = getattr(filled_in, name)
            found = expected.kind if isinstance(expected, ComponentConfig) and isinstance(value, str) else expected
            assert value == found or (value == "none" and found is None) or value == list(found), (schema.__name__, name)
            checked += 1
    assert checked > 300


def test_the_page_has_every_part_and_its_bounds() -> None:
    page = config_page()
    assert "| `max_steps` | whole number, at least 1 | `20000` | optimizer steps |" in page
    assert '| `learning_rate` | number or `"noam"` |' in page
    assert "### `[training.optimizer]` of kind `adamw`" in page
    parts = [recipe.model_fields["data"].annotation.model_fields["train"] for recipe in recipes_by_task().values()]  # type: ignore[union-attr]
    kinds_of_files = {schema for part in parts for schema in allowed_schemas(part)}
    assert page.count("### `[data.train]`") == len(kinds_of_files) == 7
    assert page.count("### `[model.norm]` of kind `rmsnorm`") == 1, "what tasks share stands once"
    assert "| `files` | text or list of texts | required |" in page
