"""The axes of a layout: how each divides a model and its tokens."""
