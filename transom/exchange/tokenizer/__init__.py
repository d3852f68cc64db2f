"""Tokenizers of both formats: reading those of a foreign folder, SentencePiece models among them, and writing those of a run."""
