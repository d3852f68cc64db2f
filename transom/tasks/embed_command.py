"""The command ``transom embed`` for encoders of other tasks."""

from typing import Any

from transom.decoding.predictors.embedder import Embedder
from transom.decoding.predictors.encoder_predictor import EncoderPredictor


def as_embedder(found: EncoderPredictor[Any]) -> Embedder:
    """Return an embedder that uses the encoder of another task's predictor."""
    return Embedder(found.model, found.tokenizer, found.inference_config, found.precision, found.encoder_backend, found.origin)
