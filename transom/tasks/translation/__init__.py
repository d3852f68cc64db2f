"""The translation of sentences."""
