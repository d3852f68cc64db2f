"""Data reports, which examine the data of a run before training, with one module per kind of data."""
