"""The input of a run and the answer to it whose logits a lens explains."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transom.decoding.inference import eval_mode
from transom.decoding.predictors.encoder_predictor import EncoderPredictor
from transom.decoding.predictors.fill_mask import MaskFiller
from transom.decoding.search.loop import log_probabilities
from transom.errors import ConfigError
from transom.inspection.edits.answers import Question, ask
from transom.inspection.edits.sweep import Target
from transom.inspection.example_batch import build_example_batch
from transom.inspection.lenses.readout import flat_logits, output_symbols


def lens_question(run: Any, text: str | None, file: Path | None = None, answer: str | None = None) -> Question:
    """Build the input of a run, and the answer to it: as ``ask`` does, and also for models with a logit per token of the input.

    Args:
        run: a run loaded by ``transom.load``.
        text: the text, with [MASK] for a masked language model; None to read ``file``.
        file: a text file, or the file of an image or sound classifier.
        answer: the continuation, translation or class; for masks and tags one token or tag for all. None for the model's own.

    Raises:
        ConfigError: the model has no such answer.
        DataError: the input is empty or longer than the context window, or has no mask.
    """
    if not isinstance(run, EncoderPredictor) or flat_answer(run):
        return ask(run, text, file, answer)
    if isinstance(run, MaskFiller) and text is not None:
        batch, positions = run.masked_batch(text)
        notes = list[str]()
    else:
        batch, notes, _ = build_example_batch(run, text, file, "refuse")
        positions = list(range(batch.source.tokens.shape[1]))
    with torch.no_grad(), eval_mode(run.model):
        logits = run.model(batch)[0]
    symbols = logits[positions].argmax(-1).tolist() if answer is None else [symbol_index(run, answer)] * len(positions)
    named = output_symbols(run)
    shown = " ".join(map(named, symbols)) if answer is None else answer
    return Question(batch, lambda found: log_probabilities(found)[:, positions, symbols].double().sum(1), shown, notes, positions, symbols)


def flat_answer(run: Any) -> bool:
    """Return whether an encoder has one answer per text."""
    return hasattr(run, "classify")


def symbol_index(run: Any, symbol: str) -> int:
    """Return the index of a class, tag or token by its text; that of a special token by its name, such as ``[EOS]``.

    Raises:
        ConfigError: there is no such class, or the text is not one token.
    """
    classes = list(getattr(run.model.config, "classes", ()))
    if classes:
        if symbol not in classes:
            raise ConfigError(f"expected one of the classes {', '.join(classes[:20])}, found {symbol!r}")
        return classes.index(symbol)
    tokenizers = getattr(run, "tokenizers", None)
    tokenizer = tokenizers.target if tokenizers else run.tokenizer
    tokens = tokenizer.encode(symbol)
    if len(tokens) != 1:
        symbols = tokenizer.symbols(range(tokenizer.vocab_size))
        if symbol in symbols:  # a special token, as it is printed
            return int(symbols.index(symbol))
        raise ConfigError(f"expected a text of one token, found {symbol!r}, which has {len(tokens)}; give one token")
    return int(tokens[0])


def logit_target(question: Question) -> Target:
    """Return the sum of the logits of an answer, as a function of the logits of a batch."""
    positions, symbols = list(question.positions), list(question.symbols)

    def target(logits: Tensor) -> Tensor:
        return flat_logits(logits)[:, positions, symbols].double().sum(1)

    return target
