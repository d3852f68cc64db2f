"""Images: reading, augmentation and batches."""
