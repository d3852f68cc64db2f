"""Vectors of texts."""
