"""Search over sequences: greedy, beam and sampled, with filters and stopping rules."""
