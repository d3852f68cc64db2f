"""Processes of a run: how they start and meet, what each holds of the model, and what they exchange."""
