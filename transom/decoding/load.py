"""From a run folder to what answers with its model."""

from pathlib import Path
from typing import Literal, TypeVar

import torch

from transom.config.decoding import Decoding, Sampling
from transom.config.recipe import load_recipe
from transom.decoding.flat import searcher_of
from transom.decoding.generator import Generator
from transom.decoding.inference import prepare
from transom.decoding.translator import Translator
from transom.errors import CheckpointError, ConfigError
from transom.inputs.tokenizer import Tokenizers
from transom.models.build import build_empty
from transom.models.decoder import DecoderTransformer
from transom.models.seq2seq import Seq2SeqTransformer
from transom.planning.precision import choose_precision
from transom.weights.run_folder import CONFIG, RECIPE, TOKENIZER, RunFolder

PrecisionName = Literal["auto", "fp32", "bf16", "fp16"]
Answering = TypeVar("Answering", Translator, Generator)


def load(folder: str | Path, precision: PrecisionName = "auto") -> Translator | Generator:
    """Load a run's model to answer with: a ``Translator`` or a ``Generator``; the caller's random numbers stay as they were.

    Args:
        folder: the ``--out`` of a training.
        precision: type of the matrix products; auto chooses by measuring.

    Raises:
        CheckpointError: there is no intact run in the folder.
    """
    run = RunFolder.open(Path(folder))
    config = run.load_config()
    tokenizers = Tokenizers.from_bytes(run.read(TOKENIZER), str(run.path / TOKENIZER))
    for name, tokenizer in zip(config.VOCABULARIES, (tokenizers.source, tokenizers.target), strict=False):
        if tokenizer.vocab_size != (expected := getattr(config, name)):
            raise CheckpointError(
                f"{run.path / TOKENIZER}: expected {expected} symbols by {name} in {CONFIG}, found {tokenizer.vocab_size};"
                " they are of different runs"
            )
    model = build_empty(config)
    run.load_weights(model)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    chosen = choose_precision(precision, device)
    prepare(model, chosen.dtype, device)
    settings = load_recipe(run.path / RECIPE)[0].decoding if (run.path / RECIPE).exists() else None
    match model, settings:
        case DecoderTransformer(), Sampling() | None:
            return Generator(model, tokenizers.source, settings, chosen, searcher_of(model))
        case Seq2SeqTransformer(), Decoding() | None:
            return Translator(model, tokenizers, settings, chosen, searcher_of(model))
        case _:
            raise CheckpointError(
                f"{run.path / RECIPE}: expected the recipe of a {config.kind} model by {CONFIG}; they are of different runs"
            )


def load_translator(folder: str | Path, precision: PrecisionName = "auto") -> Translator:
    """Load a run that translates.

    Raises:
        CheckpointError: there is no intact run in the folder.
        ConfigError: the run is of another task.
    """
    return _of(Translator, folder, precision, "a run that translates, found a language model; go on with a text: transom generate")


def load_generator(folder: str | Path, precision: PrecisionName = "auto") -> Generator:
    """Load a run that goes on with text.

    Raises:
        CheckpointError: there is no intact run in the folder.
        ConfigError: the run is of another task.
    """
    return _of(Generator, folder, precision, "a language model's run, found one that translates; translate with: transom translate")


def _of(kind: type[Answering], folder: str | Path, precision: PrecisionName, expected: str) -> Answering:
    found = load(folder, precision)
    if not isinstance(found, kind):
        raise ConfigError(f"{folder}: expected {expected}")
    return found
