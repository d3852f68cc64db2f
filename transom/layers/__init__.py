"""The parts of a Transformer: one device, no input or output, shapes in every signature."""
