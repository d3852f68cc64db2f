"""Lenses: what the residual stream, the heads, the neurons and the inputs of a model contribute to its answer."""
