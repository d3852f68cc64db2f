"""Layers for images: patch embedding, convolutional stem, channel attention, masks on grids of patches."""
