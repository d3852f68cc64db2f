"""Lenses: what the numbers inside a model say about its inputs, heads and neurons."""
