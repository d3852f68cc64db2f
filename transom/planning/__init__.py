"""Plan a run: parameters, FLOPs and memory of a model; precision, threads and processes on this machine."""
