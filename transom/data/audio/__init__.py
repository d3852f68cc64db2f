"""Sounds: WAV files, log-mel spectrograms, SpecAugment, and sounds that are synthesized."""
