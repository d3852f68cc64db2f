"""Atomic writes, checked reads, file locks and size limits."""
