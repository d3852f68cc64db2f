"""The families of models, one readable page each."""
