"""Instruction tuning."""
