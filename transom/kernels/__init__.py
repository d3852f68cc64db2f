"""Hand-written fast paths of operations in ``layers/``, ``training/`` and ``decoding/``; everything runs without this folder."""
