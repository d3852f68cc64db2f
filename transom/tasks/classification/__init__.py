"""Text classification."""
