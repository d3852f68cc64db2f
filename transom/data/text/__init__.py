"""Plain text: strict reading, tabular files, documents, windows of tokens, and token masking."""
