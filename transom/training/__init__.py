"""Learning: loss, optimizer, schedule, one step, the loop, evaluation and its record."""
