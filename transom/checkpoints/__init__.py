"""Models to and from disk: nothing half-written, nothing unpickled, every size checked before it is allocated."""
