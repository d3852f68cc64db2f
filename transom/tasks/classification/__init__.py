"""The classification of texts."""
