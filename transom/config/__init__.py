"""The closed, validated schema of recipes. Nothing here imports torch, so help and validation start fast."""
