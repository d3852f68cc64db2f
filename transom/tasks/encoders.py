"""What encoders of several tasks can do beside their own: give texts vectors."""

from typing import Any

from transom.decoding.predictors.embedder import Embedder
from transom.decoding.predictors.encoder_predictor import EncoderPredictor


def embedder_of(found: EncoderPredictor[Any]) -> Embedder:
    """Return what gives texts vectors with the encoder of another task."""
    return Embedder(found.model, found.tokenizer, found.reading, found.precision, found.reader, found.origin)
