"""Token tagging: part-of-speech tagging and named entity recognition."""
