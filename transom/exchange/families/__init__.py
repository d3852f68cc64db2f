"""Tables of the foreign families: how their configuration fields and tensors correspond to ours."""
