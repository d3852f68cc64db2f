"""Labeled texts and instructions with their answers."""
