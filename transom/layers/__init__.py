"""Layers of Transformers and recurrent baselines in plain PyTorch: no data, disk or distributed code."""
