"""Small recipes for training tests, one per task."""

from tests.training.conftest import classes, convolutional, languages, masked, pairs, photos, tags, vision

__all__ = ["classes", "convolutional", "languages", "masked", "pairs", "photos", "tags", "vision"]

collect_ignore = ["outside.py"]
"""Importing this file registers its task, so it may only be imported in a separate process."""
