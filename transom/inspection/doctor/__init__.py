"""Checks of a trained model: one module per group of checks, and one list of all."""
