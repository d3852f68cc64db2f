"""From a run folder to what answers with its model."""

from pathlib import Path
from typing import Literal, TypeVar

import torch

from transom.checkpoints.run_files import CONFIG, RECIPE, TOKENIZER
from transom.checkpoints.run_folder import RunFolder
from transom.config.architecture import Architecture
from transom.config.decoding import Decoding, ImageReading, Reading, Replying, Sampling
from transom.config.recipe import (
    ClassificationRecipe,
    EmbeddingRecipe,
    ImageRecipe,
    LanguageRecipe,
    MaskedRecipe,
    Recipe,
    TranslationRecipe,
    load_recipe,
)
from transom.data.tokenizer.tokenizer import Tokenizers
from transom.decoding.backends.searcher import reader_of, searcher_of
from transom.decoding.inference import prepare
from transom.decoding.predictors.classifier import Classifier
from transom.decoding.predictors.embedder import Embedder
from transom.decoding.predictors.filler import Filler
from transom.decoding.predictors.generator import Generator
from transom.decoding.predictors.image_classifier import ImageClassifier
from transom.decoding.predictors.translator import Translator
from transom.errors import CheckpointError, ConfigError
from transom.models.build import build_empty
from transom.models.encoder import MaskedEncoderTransformer, TextClassifierTransformer, TextEmbedderTransformer
from transom.models.network import LanguageNetwork, Seq2SeqNetwork, Writer
from transom.models.vision import ConvolutionalNetwork, VisionTransformer
from transom.planning.precision import choose_precision

PrecisionName = Literal["auto", "fp32", "bf16", "fp16", "int8"]
Answer = Translator | Generator | Filler | Classifier | ImageClassifier | Embedder
Answering = TypeVar("Answering", bound=Answer)


def load(folder: str | Path, precision: PrecisionName = "auto") -> Answer:
    """Load a run's model to answer with, in the way of its task; the caller's random numbers stay as they were.

    Args:
        folder: the ``--out`` of a training.
        precision: type of the matrix products. auto goes by this processor's instructions, not by what the run was trained in, which
            another processor may only emulate. int8 is for what writes: 8 bits in the decoder's steps, auto elsewhere.

    Raises:
        CheckpointError: there is no intact run in the folder.
        ConfigError: this run, or this machine, cannot answer in such a precision.
    """
    run = RunFolder.open(Path(folder))
    config = run.load_config()
    tokenizers = _tokenizers(run, config) if config.VOCABULARIES else None
    model = build_empty(config)
    run.load_weights(model)
    eight_bits = precision == "int8"
    if eight_bits and not isinstance(model, Writer):
        raise ConfigError(
            f"precision: int8 is for translators and language models, found a model of kind {config.kind} in {folder}; take auto"
        )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    chosen = choose_precision("auto" if precision == "int8" else precision, device)
    prepare(model, chosen.dtype, device)
    recipe = load_recipe(run.path / RECIPE)[0] if run.holds_recipe else None
    settings = recipe.decoding if recipe is not None else None
    match model, settings, tokenizers:
        case LanguageNetwork(), Replying(), Tokenizers(source=tokenizer):
            return Generator(
                model, tokenizer, settings, chosen, searcher_of(model, eight_bits=eight_bits), answering=True, exits_learned=False
            )
        case LanguageNetwork(), Sampling() | None, Tokenizers(source=tokenizer):
            exits_learned = not isinstance(recipe, LanguageRecipe) or recipe.training.exits.kind != "none"
            return Generator(model, tokenizer, settings, chosen, searcher_of(model, eight_bits=eight_bits), exits_learned=exits_learned)
        case Seq2SeqNetwork(), Decoding() | None, Tokenizers():
            return Translator(model, tokenizers, settings, chosen, searcher_of(model, eight_bits=eight_bits))
        case MaskedEncoderTransformer(), Reading() | None, Tokenizers(source=tokenizer):
            return Filler(model, tokenizer, settings or Reading(), chosen, reader_of(model))
        case TextClassifierTransformer(), Reading() | None, Tokenizers(source=tokenizer):
            return Classifier(model, tokenizer, settings or Reading(), chosen, reader_of(model))
        case TextEmbedderTransformer(), Reading() | None, Tokenizers(source=tokenizer):
            return Embedder(model, tokenizer, settings or Reading(), chosen, reader_of(model))
        case VisionTransformer() | ConvolutionalNetwork(), ImageReading() | None, None:
            return ImageClassifier(model, settings or ImageReading(), chosen, reader_of(model))
        case _:
            raise CheckpointError(
                f"{run.path / RECIPE}: expected the recipe of a {config.kind} model by {CONFIG}; they are of different runs"
            )


def _tokenizers(run: RunFolder, config: Architecture) -> Tokenizers:
    tokenizers = Tokenizers.from_bytes(run.read(TOKENIZER), str(run.path / TOKENIZER))
    for name, tokenizer in zip(config.VOCABULARIES, (tokenizers.source, tokenizers.target), strict=False):
        if tokenizer.vocab_size != (expected := getattr(config, name)):
            raise CheckpointError(
                f"{run.path / TOKENIZER}: expected {expected} symbols by {name} in {CONFIG}, found {tokenizer.vocab_size};"
                " they are of different runs"
            )
    return tokenizers


RECIPES: dict[type, type[Recipe]] = {
    Translator: TranslationRecipe,
    Generator: LanguageRecipe,
    Filler: MaskedRecipe,
    Classifier: ClassificationRecipe,
    ImageClassifier: ImageRecipe,
    Embedder: EmbeddingRecipe,
}
"""The recipes whose runs are asked in each way; they know the verb."""


def load_as(kind: type[Answering], folder: str | Path, precision: PrecisionName = "auto") -> Answering:
    """Load a run that answers in one way.

    Raises:
        CheckpointError: there is no intact run in the folder.
        ConfigError: the run is of another task.
    """
    found = load(folder, precision)
    if not isinstance(found, kind):
        raise _of_another_task(folder, kind, found)
    return found


def load_embedder(folder: str | Path, precision: PrecisionName = "auto") -> Embedder:
    """Load a run whose encoder gives texts vectors: one that learned to, or any other that has an encoder alone.

    Raises:
        CheckpointError: there is no intact run in the folder.
        ConfigError: the run has no encoder of its own.
    """
    found = load(folder, precision)
    if isinstance(found, Filler | Classifier):
        return Embedder(found.model, found.tokenizer, found.reading, found.precision, found.reader)
    if isinstance(found, Embedder):
        return found
    raise ConfigError(f"{folder}: expected an encoder's run, found one for {_verb(type(found))}; name an encoder's")


def load_classifier(folder: str | Path, precision: PrecisionName = "auto") -> Classifier | ImageClassifier:
    """Load a run that names classes, of texts or of images.

    Raises:
        CheckpointError: there is no intact run in the folder.
        ConfigError: the run is of another task.
    """
    found = load(folder, precision)
    if not isinstance(found, Classifier | ImageClassifier):
        raise _of_another_task(folder, Classifier, found)
    return found


def _of_another_task(folder: str | Path, kind: type, found: Answer) -> ConfigError:
    wanted, needed = _verb(kind), _verb(type(found))
    return ConfigError(f"{folder}: expected a run that {wanted} can use, found one for {needed}; take that, or another run")


def _verb(kind: type) -> str:
    return f"transom {RECIPES[kind].VERB}"
