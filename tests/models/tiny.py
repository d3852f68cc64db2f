"""Configurations of tiny models for all tests."""

from typing import Any

from transom.config.model import Seq2SeqConfig

VOCAB = 11


def seq2seq(**fields: Any) -> Seq2SeqConfig:
    """Configure an encoder-decoder with one block per side and width 8; ``fields`` override."""
    sizes = {"d_model": 8, "n_heads": 2, "d_ff": 12, "n_encoder_layers": 1, "n_decoder_layers": 1}
    return Seq2SeqConfig.model_validate(sizes | {"source_vocab_size": VOCAB, "target_vocab_size": VOCAB, "max_seq_len": 8} | fields)
