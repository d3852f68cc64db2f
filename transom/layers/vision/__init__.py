"""Layers for images: patches, convolutional stems, channel attention, masks on grids."""
