"""Tiny models, described once for the tests of all rooms."""

from typing import Any

from transom.config.model import Seq2Seq

VOCAB = 11


def seq2seq(**fields: Any) -> Seq2Seq:
    """Describe an encoder-decoder of one block a side, 8 wide, but for the fields named."""
    sizes = {"d_model": 8, "n_heads": 2, "d_ff": 12, "n_encoder_layers": 1, "n_decoder_layers": 1}
    return Seq2Seq.model_validate(sizes | {"source_vocab_size": VOCAB, "target_vocab_size": VOCAB, "max_seq_len": 8} | fields)
