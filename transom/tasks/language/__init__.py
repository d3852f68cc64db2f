"""Language models of plain text."""
