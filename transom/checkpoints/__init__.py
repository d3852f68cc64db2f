"""Save and load models and training state: atomic writes, no pickle, sizes checked before allocation."""
