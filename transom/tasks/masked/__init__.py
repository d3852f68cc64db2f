"""Masked language modeling."""
