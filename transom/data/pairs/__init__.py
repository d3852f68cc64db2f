"""Reading, filtering, mixing and batching of sentence pairs."""
