"""Inspection of models and runs: activation sites, attention weights, alignments, the training report and the model card."""
