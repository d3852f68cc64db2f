"""Optimized implementations of operations in ``layers/``, ``training/`` and ``decoding/``; everything also runs without this package."""
