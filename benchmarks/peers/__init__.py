"""The same work done by other libraries, each in its own best way."""
