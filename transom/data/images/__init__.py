"""Images: read, changed at random, and laid in batches."""
