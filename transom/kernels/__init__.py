"""Kernels: faster implementations of operations of ``layers/``, ``training/`` and ``decoding/``, which also run without this package."""
