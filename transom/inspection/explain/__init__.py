"""The hand calculation of a model on one input: every number with the operands from which it follows."""
