"""The answer of a run to one input, whose log-probability a sweep watches."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from transom.data.batch import LanguageBatch, PaddedSequences, TranslationBatch
from transom.decoding.inference import eval_mode
from transom.decoding.predictors.generator import Generator
from transom.decoding.predictors.long_texts import check_length
from transom.decoding.predictors.multi_label import MultiLabelClassifier
from transom.decoding.predictors.translator import Translator
from transom.decoding.search.loop import log_probabilities
from transom.errors import ConfigError
from transom.inspection.edits.sweep import Target
from transom.inspection.example_batch import build_example_batch


class Question(NamedTuple):
    """An input and its answer.

    Attributes:
        batch: the input, with the answer as far as the model reads it.
        target: log-probability of the answer, from the logits.
        answer: the answer as text.
        notes: notes for the user on the input.
        positions: positions of the logits of the answer's tokens; 0 for a class.
        symbols: the answer's tokens, or the index of the class.
    """

    batch: Any
    target: Target
    answer: str
    notes: Sequence[str] = ()
    positions: Sequence[int] = ()
    symbols: Sequence[int] = ()


def ask(run: Any, text: str | None, file: Path | None = None, answer: str | None = None) -> Question:
    """Build the input of a run, and the log-probability of an answer to it.

    Args:
        run: a run loaded by ``transom.load``: a language model, translator or classifier.
        text: the text; None to read ``file``.
        file: a text file, or the file of an image or sound classifier.
        answer: the continuation, translation or class; None for the model's own: the most probable token, translation or class.

    Raises:
        ConfigError: the run is of another kind, or has no such class.
        DataError: the input is empty or longer than the context window.
    """
    classes: Sequence[str] = getattr(run.model.config, "classes", ())
    if isinstance(run, Translator):
        example = build_example_batch(run, text, file, "refuse")
        return _translation(run, example.batch, answer, example.notes)
    if isinstance(run, Generator):
        example = build_example_batch(run, text, file, "refuse")
        return _continuation(run, example.batch.decoder_input.tokens[0].tolist(), text, answer)
    if classes and hasattr(run, "classify"):
        example = build_example_batch(run, text, file, "refuse")
        return class_question(run, example.batch, answer)
    raise ConfigError(f"expected a run of a language model, translator or classifier, found {type(run).__name__}; use another run")


def _translation(run: Translator, batch: TranslationBatch, answer: str | None, notes: Sequence[str]) -> Question:
    """Watch log p of a translation, end token included."""
    own = run.tokenizers.target.decode(batch.labels[0].tolist())
    if answer is not None:
        target = run.tokenizers.target.encode(answer)
        check_length("target", len(target), run.model.config.max_seq_len - run.tokenizers.target.special_tokens.n_added)
        template, whole = run.tokenizers.source.special_tokens.seq2seq, batch.source.tokens[0].tolist()
        source = whole[len(template.prefix) : len(whole) - len(template.suffix)]
        batch, notes = run.build_batch(source, target).to(run.model.device), ()
    labels = batch.labels[0]
    places = torch.arange(len(labels), device=labels.device)
    shown = own if answer is None else answer
    return Question(
        batch,
        lambda logits: log_probabilities(logits)[:, places, labels].double().sum(1),
        shown,
        notes,
        range(len(labels)),
        labels.tolist(),
    )


def _continuation(run: Generator, prompt: list[int], text: str | None, answer: str | None) -> Question:
    """Watch log p of the tokens of a continuation, by default of the most probable next token."""
    prompt = [*prompt, run.tokenizer.special_tokens.answer_start] if run.instruction_tuned else prompt
    if answer is None:
        read = PaddedSequences.pad([prompt])
        batch = LanguageBatch(read, read.tokens, (0,)).to(run.model.device)
        with torch.no_grad(), eval_mode(run.model):
            tokens = [int(run.model(batch)[0, -1].argmax())]
    else:
        whole = run.tokenizer.encode(f"{text or ''}{answer}")
        n_before = len(run.tokenizer.special_tokens.template.prefix)
        starts = not run.instruction_tuned and whole[: len(prompt) - n_before] == prompt[n_before:]
        tokens = whole[len(prompt) - n_before :] if starts else run.tokenizer.encode(answer)
        if not tokens:
            raise ConfigError("answer: expected a text of at least one token, found none")
    row = [*prompt, *tokens[:-1]]
    if len(row) > run.model.config.max_seq_len:
        raise ConfigError(f"answer: expected text and answer of at most {run.model.config.max_seq_len:,} tokens, found {len(row):,}")
    read = PaddedSequences.pad([row])
    batch = LanguageBatch(read, read.tokens, (0,)).to(run.model.device)
    places, chosen = torch.arange(len(prompt) - 1, len(row), device=run.model.device), torch.tensor(tokens, device=run.model.device)
    shown = "".join(run.tokenizer.symbols(tokens)).replace("▁", " ") if answer is None else answer
    return Question(batch, lambda logits: log_probabilities(logits)[:, places, chosen].double().sum(1), shown, (), places.tolist(), tokens)


def class_question(run: Any, batch: Any, answer: str | None = None) -> Question:
    """Watch log p of a class or label of a batch of one row, by default of the most probable one.

    Raises:
        ConfigError: there is no such class.
    """
    classes: Sequence[str] = run.model.config.classes

    def log_p(logits: Tensor) -> Tensor:
        return (F.logsigmoid(logits) if isinstance(run, MultiLabelClassifier) else log_probabilities(logits)).double()

    if answer is not None and answer not in classes:
        raise ConfigError(f"answer: expected one of the classes {', '.join(classes[:20])}, found {answer!r}")
    if answer is None:
        with torch.no_grad(), eval_mode(run.model):
            answer = classes[int(run.model(batch)[0].argmax())]
    index = classes.index(answer)
    return Question(batch, lambda logits: log_p(logits)[:, index], answer, (), (0,), (index,))
