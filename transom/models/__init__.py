"""Models: one module per family."""
