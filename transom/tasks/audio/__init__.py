"""Audio classification."""
