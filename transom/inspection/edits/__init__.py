"""Edits of what a model computes, as data: ablations, patches and knock-outs, for a scope, a file or a sweep."""
