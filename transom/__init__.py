"""transom: a Transformer in plain sight."""

__version__ = "0.1.0.dev0"
