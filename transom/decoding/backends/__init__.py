"""Decoders made ready for speed: compiled, laid out flat, dealt out to threads."""
