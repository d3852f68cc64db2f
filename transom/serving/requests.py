"""Schemas of the requests of the page, all of which are JSON objects.

A request about a forward pass carries the model, the input and the edits. The server keeps no state of a page between requests.
"""

from typing import Annotated, Any, Self

from pydantic import Field, field_validator, model_validator

from transom.config.schema import Schema
from transom.inspection.edits.schemas import AnyEdit, Patch
from transom.inspection.messages.tables import ENGLISH, LANGUAGES

MAX_TEXT = 1_000_000
"""Characters of a text."""

Name = Annotated[str, Field(min_length=1, max_length=300)]
Index = Annotated[int, Field(ge=0)]
NamedRequests = Annotated[tuple[Annotated[tuple[str, dict[str, Any]], Field(strict=False)], ...], Field(strict=False, max_length=20_000)]


class InputRequest(Schema):
    """An input: a text, with its translation for a translator, or the identifier of a file that was uploaded."""

    text: str | None = Field(None, description="the text")
    target: str | None = Field(None, description="the translation; by default the model's own")
    file: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")] | None = Field(None, description="identifier of an uploaded file")

    @model_validator(mode="after")
    def _one_input(self) -> Self:
        if (self.text is None) == (self.file is None):
            raise ValueError(f"expected text or file, found {'neither' if self.text is None else 'both'}; give one of them")
        return self


class ModelRequest(Schema):
    """A request about a model."""

    model: Index = Field(0, description="index of the model")


class UploadRequest(Schema):
    """A file that serves as input."""

    name: Name = Field(description="name of the file")
    data: str = Field(description="content in base64")


class QuantitiesRequest(ModelRequest):
    """The quantities of all passes of an input."""

    input: InputRequest = Field(description="the input")
    language: Name = Field(ENGLISH, description="language of the texts of the answer")

    @field_validator("language")
    @classmethod
    def _has_table(cls, language: str) -> str:
        if language not in LANGUAGES:
            raise ValueError(f"expected {' or '.join(LANGUAGES)}, found {language!r:.40}")
        return language


class PassRequest(QuantitiesRequest):
    """A request about one forward pass."""

    edits: Annotated[tuple[AnyEdit, ...], Field(strict=False, max_length=1000)] = Field((), description="edits, in order")

    @model_validator(mode="after")
    def _reads_no_files(self) -> Self:
        for edit in self.edits:
            if isinstance(edit, Patch) and (edit.file is not None or edit.run is not None):
                raise ValueError("edits: expected patches from a text, found one from a file or run; use transom trace --edit")
        return self

    @property
    def pass_key(self) -> str:
        """Model, input and edits as JSON; the same for all requests about a pass, in any language."""
        return self.model_dump_json(include={"model", "input", "edits"})

    def without_edits(self) -> "PassRequest":
        """Return the request for the pass of the same input without edits."""
        return PassRequest(model=self.model, input=self.input)


class TokensRequest(ModelRequest):
    """The tokens of another input, from which a patch takes its values."""

    input: InputRequest = Field(description="the other input")


class TensorRequest(PassRequest):
    """A quantity, or the part of it at some indices."""

    name: Name = Field(description="address of the quantity")
    index: dict[str, Index] = Field({}, description="fixed index of some axes, by name")


class CalculationRequest(TensorRequest):
    """The hand calculation of one element of a quantity."""

    temperature: Annotated[float, Field(ge=1e-6, le=1e6, strict=False)] = Field(1.0, description="divisor of the logits")


class PositionRequest(PassRequest):
    """A request about the logits at a position."""

    position: Index = Field(description="position; 0 for a class of a text or picture")


class HeadRequest(PositionRequest):
    """Request for what one head does for one token."""

    attention: Name = Field(description="address of the attention layer")
    head: Index = Field(description="query head")
    query: Index = Field(description="position of the query")
    symbol: Index | None = Field(None, description="symbol or class whose logit is explained; by default the most probable")


class TileRequest(PassRequest):
    """A tile of an attention map."""

    attention: Name = Field(description="address of the attention layer")
    head: Index = Field(description="query head")
    level: Annotated[int, Field(ge=0, le=30)] = Field(description="a row is every 2^level-th query, a column the sum over 2^level keys")
    row: Index = Field(description="row of the tile in the grid of tiles")
    column: Index = Field(description="column of the tile")


class ExportRequest(Schema):
    """Requests whose answers an exported page holds."""

    requests: NamedRequests = Field(description="name and body of each request")
    state: dict[str, Any] = Field(description="state of the page")
    language: Name = Field("en", description="language of the page")
