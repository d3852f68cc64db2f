"""The base of every schema class: closed, frozen, and spelled as one word where that is enough."""

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


class Schema(BaseModel):
    """A closed set of validated fields; an unknown field is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class Brick(Schema):
    """A part that is chosen by its ``kind``.

    In a recipe ``norm = "layernorm"`` is short for ``norm = { kind = "layernorm" }``.
    """

    @model_validator(mode="before")
    @classmethod
    def _from_word(cls, value: Any) -> Any:
        return {"kind": value} if isinstance(value, str) else value
