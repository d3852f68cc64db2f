"""Fixtures of the tests of ``checkpoints``."""

from tests.files.writing import limited_files, python

__all__ = ["limited_files", "python"]
