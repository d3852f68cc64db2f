"""Benchmarks of speed and accuracy, beside other libraries; not part of the installed package."""
