"""The same workloads run by other libraries, each in its fastest configuration."""
