"""Recurrent baselines."""
