"""Data-parallel training on one machine: launcher, collectives and heartbeats."""
