"""Pages and pictures without a library: the training report, the model card, notebook fragments, SVG charts."""
