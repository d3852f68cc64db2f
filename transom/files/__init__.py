"""Files: atomic writes, checked reads, locks and the limits of what is read."""
