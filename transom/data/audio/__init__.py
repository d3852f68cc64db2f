"""Recorded and synthesized sounds."""
