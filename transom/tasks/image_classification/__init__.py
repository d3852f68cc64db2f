"""The classification of images."""
