"""Measurements of speed beside the peers; not part of the package."""
