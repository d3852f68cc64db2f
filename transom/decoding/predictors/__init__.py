"""Predictors: what users call with text or images."""
