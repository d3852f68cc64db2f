"""Pictures of a model's numbers, drawn by matplotlib: attention maps, lenses, embeddings, norms by depth, the architecture."""
