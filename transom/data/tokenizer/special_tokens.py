"""Special tokens. No text is ever encoded as a special token, whatever a user types.

In a multilingual model the language tags, such as <2de>, are special tokens too: ``Tokenizer.language_prefix``.
"""

PAD = 0
"""Padding. No token attends to it: masks are built from segments, not from token ids."""
SOS = 1
"""Start of sequence: the decoder's first input."""
EOS = 2
"""End of sequence: the last token of each source and of each target's labels; also precedes each document of a token stream."""
UNK = 3
"""Unknown unit, for vocabularies of characters or words; byte-pair encoding needs none."""

TOKEN_NAMES = {PAD: "[PAD]", SOS: "[SOS]", EOS: "[EOS]", UNK: "[UNK]"}
"""Printed form of each special token."""
