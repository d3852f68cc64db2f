"""Train Transformers on your own data, and load the trained models to use them.

import transom

run = transom.train("phrasebook", out="runs/phrasebook", minutes=5)
translator = run.load()  # or transom.load("runs/phrasebook")
translator.translate(["hello world"], beam_size=5)
translator.align("hello world", "hola mundo")
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transom.decoding.predictors.classifier import Classifier as Classifier
    from transom.decoding.predictors.embedder import Embedder as Embedder
    from transom.decoding.predictors.fill_mask import MaskFiller as MaskFiller
    from transom.decoding.predictors.generator import Generator as Generator
    from transom.decoding.predictors.image_classifier import ImageClassifier as ImageClassifier
    from transom.decoding.predictors.translator import Translator as Translator
    from transom.errors import TransomError as TransomError
    from transom.inspection.edits.scope import edits as edits
    from transom.inspection.explain.explain import explain as explain
    from transom.inspection.plots.kinds import plot as plot
    from transom.inspection.trace import trace as trace
    from transom.models.build import build as build
    from transom.tasks.audio.task import AudioClassifier as AudioClassifier
    from transom.tasks.load import load as load
    from transom.tasks.tagging.predictor import Tagger as Tagger
    from transom.tasks.train import train as train

__version__ = "0.1.0.dev0"

_HOMES = {
    "AudioClassifier": "transom.tasks.audio.task",
    "Classifier": "transom.decoding.predictors.classifier",
    "Embedder": "transom.decoding.predictors.embedder",
    "Generator": "transom.decoding.predictors.generator",
    "ImageClassifier": "transom.decoding.predictors.image_classifier",
    "MaskFiller": "transom.decoding.predictors.fill_mask",
    "Tagger": "transom.tasks.tagging.predictor",
    "TransomError": "transom.errors",
    "Translator": "transom.decoding.predictors.translator",
    "build": "transom.models.build",
    "edits": "transom.inspection.edits.scope",
    "explain": "transom.inspection.explain.explain",
    "load": "transom.tasks.load",
    "plot": "transom.inspection.plots.kinds",
    "trace": "transom.inspection.trace",
    "train": "transom.tasks.train",
}

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    """Import a public name of the package on first use, which keeps ``import transom`` fast."""
    if name not in _HOMES:
        raise AttributeError(f"module 'transom' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """Return the public names of the package."""
    return sorted([*_HOMES, "__version__"])
