"""Training: losses, optimizers, schedules, the training step and loop, validation and metrics."""
