"""What a run will cost and how it should use the machine: parameters, FLOPs, precision, threads."""
