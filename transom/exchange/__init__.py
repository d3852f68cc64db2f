"""Import from and export to other formats."""
