"""Tokenizers based on byte-pair encoding, characters or words, and the file format that stores tokenizers."""
