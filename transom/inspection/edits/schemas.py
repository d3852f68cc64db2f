"""Schemas of edits: changes of what a model computes, which a JSON file can hold.

Indices count from 0. Positions are those of tokens in a row, the beginning-of-sequence token included.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from transom.config.schema import ComponentConfig, Schema

VERSION = 1
"""Version of the file format."""


def _not_empty(values: tuple[Any, ...]) -> tuple[Any, ...]:
    if not values:
        raise ValueError("expected at least one item, found none; leave the field out, or fill the list")
    return values


def _distinct(values: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(values)) < len(values):
        twice = next(value for value in values if values.count(value) > 1)
        raise ValueError(f"expected each number once, found {twice} {values.count(twice)} times; leave it out")
    return _not_empty(values)


Indices = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(strict=False), AfterValidator(_distinct)]
Stack = Literal["encoder", "decoder"]
Values = Literal["zero", "mean", "resample"]


def _indices(what: str) -> Any:
    return Field(None, description=f"{what}, from 0; all if left out")


class EditConfig(ComponentConfig):
    """Base schema of edits."""


class BlockEditConfig(EditConfig):
    """Base schema of edits of whole blocks, given by their index."""

    stack: Stack | None = Field(None, description="encoder or decoder; needed for models that have both")
    blocks: Indices | None = _indices("blocks")


class AttentionEditConfig(BlockEditConfig):
    """Base schema of edits of attention layers."""

    part: Literal["attn", "cross"] = Field("attn", description="self-attention (attn) or cross-attention (cross)")
    heads: Indices | None = _indices("query heads")


class AblationConfig(BlockEditConfig):
    """Base schema of ablations, which replace what a head or neuron computed.

    The value is 0; or the mean over all tokens of the reference texts; or the value of a reference text at the same position, drawn for
    each row. Without reference texts the batch itself is the reference: resampling then takes another row. Positions that the drawn text
    lacks keep their value.
    """

    value: Values = Field("zero", description="what replaces the values: zero, mean or resample")
    positions: Indices | None = _indices("positions of tokens")
    texts: Annotated[tuple[str, ...], Field(strict=False)] = Field((), description="reference texts for mean and resample")
    seed: int = Field(0, description="seed of the draw of resample")

    @model_validator(mode="after")
    def _reference_is_used(self) -> Self:
        if self.texts and self.value == "zero":
            raise ValueError("texts: expected reference texts with value = mean or resample, found them with zero; leave them out")
        return self


class AblateHeads(AblationConfig, AttentionEditConfig):
    """Replace the output z_h of attention heads."""

    kind: Literal["ablate-heads"] = "ablate-heads"


class AblateNeurons(AblationConfig):
    """Replace hidden units of feed-forward networks."""

    kind: Literal["ablate-neurons"] = "ablate-neurons"
    neurons: Indices | None = _indices("hidden units")
    expert: Annotated[int, Field(ge=0)] | None = Field(None, description="expert, in a mixture of experts")


class SiteEditConfig(EditConfig):
    """Base schema of edits of named tensors of the forward pass."""

    name: str = Field(min_length=1, description="address, ending or pattern of tensors of the pass, as transom names RUN lists them")
    heads: Indices | None = _indices("heads")
    positions: Indices | None = _indices("positions of tokens")
    neurons: Indices | None = _indices("components of the last axis")


class Patch(SiteEditConfig):
    """Replace tensors by those of another pass: of another text, of another run, or of a file that ``transom trace --out`` wrote.

    Without ``positions``, all positions that both passes have are replaced. With ``from_positions``, the values at positions[i] come from
    from_positions[i] of the other pass; without, from the same position.
    """

    kind: Literal["patch"] = "patch"
    from_positions: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(strict=False)] | None = Field(
        None, description="position in the other text for each of positions; by default the same"
    )
    text: str | None = Field(None, description="text of the other pass; for models of images or sounds the name of a file")
    run: str | None = Field(None, description="run folder of a model of the same shape, for the other pass")
    file: str | None = Field(None, description="safetensors file with the tensors by address")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.text is None) == (self.file is None):
            found = "neither" if self.text is None else "both"
            raise ValueError(f"expected text or file, from which the values are taken, found {found}; give one of them")
        if self.run is not None and self.text is None:
            raise ValueError("run: expected a text for the pass of the other run, found a file; give text, or leave out run")
        if self.from_positions is not None and len(self.from_positions) != (n := len(self.positions or ())):
            found = f"{len(self.from_positions)} for {n}" if self.positions else "them without positions"
            raise ValueError(f"from_positions: expected one position of the other text for each of positions, found {found}")
        return self


class Scale(SiteEditConfig):
    """Multiply tensors by a factor."""

    kind: Literal["scale"] = "scale"
    factor: float = Field(description="factor")


class Set(SiteEditConfig):
    """Set tensors to a value."""

    kind: Literal["set"] = "set"
    value: float | Annotated[tuple[float, ...], Field(strict=False), AfterValidator(_not_empty)] = Field(
        description="a number, or one number per component of the last axis"
    )


class KnockOutKey(AttentionEditConfig):
    """Hide keys from queries: the weights of the other keys are those of a softmax without them."""

    kind: Literal["knock-out-key"] = "knock-out-key"
    queries: Indices | None = _indices("positions of queries")
    keys: Indices = Field(description="positions of the keys to hide, from 0")


class UnscaledScores(AttentionEditConfig):
    """Compute attention scores without the division by sqrt(d_k)."""

    kind: Literal["unscaled-scores"] = "unscaled-scores"


class ZeroAfterSoftmax(AttentionEditConfig):
    """Set the weights of masked keys to 0 after the softmax over all keys, so that weights sum to less than 1.

    The mask is that of the layer: causality, padding and segments.
    """

    kind: Literal["zero-after-softmax"] = "zero-after-softmax"


class NoResidual(BlockEditConfig):
    """Remove the residual connection of a sub-layer f: f(x) in place of x + f(x), Norm(f(x)) in place of Norm(x + f(x)).

    A parallel block has one residual connection around all sub-layers, ``block``.
    """

    kind: Literal["no-residual"] = "no-residual"
    sublayer: Literal["attn", "cross", "ff", "block"] = Field(description="self-attention, cross-attention, feed-forward network, or block")


AnyEdit = Annotated[
    AblateHeads | AblateNeurons | Patch | KnockOutKey | Scale | Set | UnscaledScores | ZeroAfterSoftmax | NoResidual,
    Field(discriminator="kind"),
]


class EditFile(Schema):
    """A file of edits, in the order in which they apply."""

    version: Literal[1] = Field(description="version of the file format")
    edits: Annotated[tuple[AnyEdit, ...], AfterValidator(_not_empty)] = Field(strict=False, description="edits, applied in this order")


def reference_texts(edit: EditConfig) -> tuple[str, ...]:
    """Return the texts of other passes from which an edit takes its values."""
    if isinstance(edit, AblationConfig):
        return edit.texts
    return (edit.text,) if isinstance(edit, Patch) and edit.text is not None else ()


def describe_edit(edit: EditConfig) -> str:
    """Return the kind of an edit and its fields in short.

    >>> describe_edit(AblateHeads(blocks=(0,), heads=(1, 2)))
    'ablate-heads, blocks 0, heads 1 2'
    """
    fields = edit.model_dump(mode="json", exclude_defaults=True, exclude={"kind"})
    parts = [f"{name} {' '.join(map(str, value)) if isinstance(value, list) else value}" for name, value in fields.items()]
    return ", ".join([edit.kind, *parts])
