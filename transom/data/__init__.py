"""Raw material to batches: text, pairs, tokenizers, samplers and loaders."""
