"""Plain text: strict reading, tabular files, documents, windows and token masking."""
