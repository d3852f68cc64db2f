"""Layers of Transformers and recurrent baselines in plain PyTorch, without data loading, file access or distributed training."""
