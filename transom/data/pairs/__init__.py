"""Sentence pairs: reading, filtering, mixing and batching."""
