"""From logits to answers: filters, selection, the loop, and what people call: ``translate`` and ``score``."""
