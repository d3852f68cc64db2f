"""Models that answer instructions."""
