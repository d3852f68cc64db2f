"""The small recipes of the trainings' tests, one of each task."""

from tests.training.conftest import classes, convolutional, languages, masked, pairs, photos, tags, vision

__all__ = ["classes", "convolutional", "languages", "masked", "pairs", "photos", "tags", "vision"]

collect_ignore = ["outside.py"]
"""Importing it registers its task, which only a process of its own may have."""
