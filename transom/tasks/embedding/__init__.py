"""Text embedding."""
