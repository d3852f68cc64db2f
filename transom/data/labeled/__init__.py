"""Loading of labeled texts and of instructions with their answers."""
