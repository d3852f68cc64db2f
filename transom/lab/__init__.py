"""Experiments: the worked examples of five articles on the Transformer, recomputed."""
