"""Models: one module per family (decoder, encoder, encoder-decoder, recurrent, vision)."""
