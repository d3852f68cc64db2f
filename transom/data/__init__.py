"""Data sets, tokenizers, and loaders that build training batches."""
