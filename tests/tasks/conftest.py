"""The small recipes of the trainings' tests, one of each task."""

from tests.training.conftest import classes, convolutional, languages, masked, pairs, photos, tags, vision

__all__ = ["classes", "convolutional", "languages", "masked", "pairs", "photos", "tags", "vision"]
