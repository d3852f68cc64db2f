"""Several processes, one run: who they are, how they start, and what they say to each other."""
