"""Predictors: inference on texts and images with a trained model."""
