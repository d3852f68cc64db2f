"""What a training step learns from: one file per objective, which a task or a component of the model brings with it."""
