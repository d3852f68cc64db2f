"""Decoding strategies: greedy search, beam search and sampling, with logits processors and stop strings."""
