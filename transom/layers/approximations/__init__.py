"""Approximations of softmax attention."""
