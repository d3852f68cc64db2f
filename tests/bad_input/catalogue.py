"""All areas of bad input, and the case of each seed."""

from typing import NamedTuple

from tests.bad_input import (
    checkpoint_files,
    checkpoints,
    images,
    options,
    outputs,
    recipes,
    run_folders,
    settings,
    tables,
    text,
    tokenizers,
)
from tests.bad_input.case import Case, Draw

AREAS = {
    "run folders": {**run_folders.KINDS, **tokenizers.KINDS},
    "checkpoints": {**checkpoints.KINDS, **checkpoint_files.KINDS},
    "recipes": recipes.KINDS,
    "settings": settings.KINDS,
    "text": text.KINDS,
    "tables": tables.KINDS,
    "images": images.KINDS,
    "options": options.KINDS,
    "outputs": outputs.KINDS,
}
"""The kinds of each area; seeds take areas in turn, and the kinds of an area in turn."""


class Seeded(NamedTuple):
    """The case of a seed, and what it is one of."""

    area: str
    kind: str
    case: Case


def seeded(seed: int) -> Seeded:
    """Make the case of a seed: any number from 0."""
    turn, place = divmod(seed, len(AREAS))
    area = list(AREAS)[place]
    kinds = AREAS[area]
    kind = list(kinds)[turn % len(kinds)]
    return Seeded(area, kind, kinds[kind](Draw(f"{area}, {kind}, {seed}")))
