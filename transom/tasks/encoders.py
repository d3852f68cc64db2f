"""What encoders of several tasks can do beside their own: give texts vectors."""

from transom.decoding.predictors.classifier import Classifier
from transom.decoding.predictors.embedder import Embedder
from transom.decoding.predictors.filler import Filler


def embedder_of(found: Filler | Classifier) -> Embedder:
    """Return what gives texts vectors with the encoder of another task."""
    return Embedder(found.model, found.tokenizer, found.reading, found.precision, found.reader)
