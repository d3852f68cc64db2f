"""Data reports before training, one module per kind of data."""
