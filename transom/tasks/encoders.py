"""The verb ``transom embed`` for encoders of other tasks."""

from typing import Any

from transom.decoding.predictors.embedder import Embedder
from transom.decoding.predictors.encoder_predictor import EncoderPredictor


def embedder_of(found: EncoderPredictor[Any]) -> Embedder:
    """Return an embedder that uses the encoder of another task's predictor."""
    return Embedder(found.model, found.tokenizer, found.reading, found.precision, found.reader, found.origin)
