"""Tokenizers: byte-pair encoding, characters and words, and the file that stores them."""
