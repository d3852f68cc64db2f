"""Supports the command ``transom embed`` in tasks other than embedding."""

from typing import Any

from transom.decoding.predictors.embedder import Embedder
from transom.decoding.predictors.encoder_predictor import EncoderPredictor


def as_embedder(found: EncoderPredictor[Any]) -> Embedder:
    """Return an ``Embedder`` that shares the encoder and the tokenizer of another predictor."""
    return Embedder(found.model, found.tokenizer, found.inference_config, found.precision, found.encoder_backend, found.origin)
