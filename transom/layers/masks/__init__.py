"""Attention masks: mask rules, dense and block-sparse masks, and the attention contexts of a pass."""
