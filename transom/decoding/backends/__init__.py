"""Inference backends: fused PyTorch operations and the native C++ decoder."""
