"""Taggers of words."""
