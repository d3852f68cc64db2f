"""From a run folder to a translator."""

from pathlib import Path
from typing import Literal, cast

import torch

from transom.config.recipe import load_recipe
from transom.decoding.flat import searcher_of
from transom.decoding.inference import prepare
from transom.decoding.translator import Translator
from transom.errors import CheckpointError
from transom.inputs.tokenizer import Tokenizers
from transom.models.build import build_empty
from transom.models.seq2seq import Seq2SeqTransformer
from transom.planning.precision import choose_precision
from transom.weights.run_folder import CONFIG, RECIPE, TOKENIZER, RunFolder


def load(folder: str | Path, precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto") -> Translator:
    """Load a run's model to translate with; the caller's random numbers stay as they were.

    Args:
        folder: the ``--out`` of a training.
        precision: type of the matrix products; auto chooses by measuring.

    Raises:
        CheckpointError: there is no intact run in the folder.
    """
    run = RunFolder.open(Path(folder))
    config = run.load_config()
    tokenizers = Tokenizers.from_bytes(run.read(TOKENIZER), str(run.path / TOKENIZER))
    for side, found, expected in (
        ("source", tokenizers.source.vocab_size, config.source_vocab_size),
        ("target", tokenizers.target.vocab_size, config.target_vocab_size),
    ):
        if found != expected:
            raise CheckpointError(
                f"{run.path / TOKENIZER}: expected {expected} {side} symbols by {CONFIG}, found {found}; they are of different runs"
            )
    model = cast(Seq2SeqTransformer, build_empty(config))
    run.load_weights(model)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    chosen = choose_precision(precision, device)
    prepare(model, chosen.dtype, device)
    decoding = load_recipe(run.path / RECIPE)[0].decoding if (run.path / RECIPE).exists() else None
    return Translator(model, tokenizers, decoding, chosen, searcher_of(model))
