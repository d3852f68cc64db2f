"""Ids of special tokens. No part of a text is ever encoded as padding, a start or end of sequence, or a language tag.

In a multilingual model, the language tags such as <2de> are special tokens too; see ``Tokenizer.language_prefix``.
"""

PAD = 0
"""Padding, to which no token attends. Attention masks are built from segments rather than from this id."""
SOS = 1
"""Start of sequence, the first token that a decoder reads. In an instruction, it separates prompt and answer."""
EOS = 2
"""End of sequence, the last token of each source and of the labels of each target.

It also precedes each document of a token stream.
"""
UNK = 3
"""Unknown character or word, in vocabularies of characters or words.

Byte-pair encoding has no unknown characters. There the id belongs to the NUL character, which no text file may contain.
"""

MASK = "[MASK]"
"""Printed form of the mask token, and what stands for it in a text to fill in. Its id is the size of the vocabulary."""

TOKEN_NAMES = {PAD: "[PAD]", SOS: "[SOS]", EOS: "[EOS]", UNK: "[UNK]"}
"""Printed form of each special token."""
