"""The classification of sounds."""
