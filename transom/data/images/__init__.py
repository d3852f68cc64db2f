"""Reading, augmentation and batching of images."""
