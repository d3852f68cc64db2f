"""The fields that fine-tuning may change exist in the schemas."""

from transom.config.model_overrides import OVERRIDABLE_FIELDS, RECIPE_FIELDS
from transom.config.schema import Schema, allowed_schemas
from transom.config.task_registry import recipes_by_task


def field_names(schema: type[Schema], prefix: str = "", depth: int = 4) -> set[str]:
    """Return the dotted names of all fields of a schema, of every component that it allows."""
    names = set[str]()
    for name, field in schema.model_fields.items():
        names.add(f"{prefix}{name}")
        if depth:
            for below in allowed_schemas(field.annotation if not field.metadata else field):
                names |= field_names(below, f"{prefix}{name}.", depth - 1)
    return names


def test_every_overridable_field_is_a_field_of_some_model() -> None:
    known = set[str]()
    for recipe in recipes_by_task().values():
        for model in allowed_schemas(recipe.model_fields["model"]):
            known |= field_names(model)
    assert known >= OVERRIDABLE_FIELDS | RECIPE_FIELDS
