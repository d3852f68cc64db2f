"""Training objectives: one module per loss of a task or of a model component."""
