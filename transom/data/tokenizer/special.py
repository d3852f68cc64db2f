"""The symbols that are no text. No tokenizer ever reads them out of a text, whatever a user types.

Where a model translates into several languages, their tags, as <2de>, are such symbols too: ``tokenizer.Tokenizer.prefix``.
"""

PAD = 0
"""Padding, which no real token reads: masks come from segments, not from symbols."""
SOS = 1
"""Start of a sequence: the decoder's first input."""
EOS = 2
"""End of a sequence: the last token of each source, and of each target's labels."""
UNK = 3
"""What is not in the vocabulary, in the kinds that are not built on bytes."""

NAMES = {PAD: "[PAD]", SOS: "[SOS]", EOS: "[EOS]", UNK: "[UNK]"}
"""What people see for them."""
