"""Import from and export to other libraries' model folders: one declarative table per foreign family, read in both directions."""
