"""Build a batch of one row from a user's text or file, to inspect a model on it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

from transom.data.batch import Batch
from transom.data.text.text_io import check_text, read_lines
from transom.decoding.predictors.long_texts import check_length, check_long_text_policy
from transom.decoding.predictors.translator import Translator
from transom.errors import ConfigError, DataError
from transom.files.message import phrase
from transom.inspection.activations import special_tokens_of
from transom.inspection.messages.tables import message
from transom.inspection.pages.describe import with_article


@runtime_checkable
class SupportsFileInput(Protocol):
    """A predictor whose input is a file without text, such as an image."""

    NOUN: ClassVar[str]
    """Noun for the content of a file, such as ``image``."""

    def file_batch(self, file: Path) -> Batch:
        """Build a batch from a file."""
        ...


@runtime_checkable
class SupportsTextInput(Protocol):
    """A predictor whose input is text."""

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, without special tokens."""
        ...

    def text_batch(self, tokens: Sequence[int]) -> tuple[Batch, list[str]]:
        """Build a batch from at most ``max_seq_len`` - 1 tokens of a text; return the batch, and a sentence on each input added to it."""
        ...


class ExampleBatch(NamedTuple):
    """A batch of one row.

    Attributes:
        batch: input of the model.
        notes: messages for the user about input that was dropped or added.
        n_dropped_tokens: number of tokens of the text that are not in the batch.
    """

    batch: Any
    notes: list[str]
    n_dropped_tokens: int = 0


def build_example_batch(
    predictor: Any,
    text: str | None,
    file: Path | None,
    too_long: Literal["truncate", "refuse"] = "truncate",
    target: str | None = None,
) -> ExampleBatch:
    """Build a batch of one row from a text or file.

    Args:
        predictor: a run loaded by ``transom.load``.
        text: the text; None to read ``file``.
        file: a text file, or a file of the kind that a ``SupportsFileInput`` predictor reads.
        too_long: truncate a text that exceeds the context window, or raise.
        target: target text of a translator; None for the model's own translation of the text.

    Raises:
        ConfigError: a target is given for a model that does not translate.
        DataError: the input is empty or of the wrong kind, or it exceeds the context window and ``too_long`` is "refuse".
    """
    model = predictor.model
    if target is not None and not isinstance(predictor, Translator):
        raise ConfigError(f"target: expected a translator, found a {type(predictor).__name__}, which has no target text; leave it out")
    if isinstance(predictor, SupportsFileInput):
        if file is None:
            raise DataError(f"expected {with_article(predictor.NOUN)} for this model, found no file; give one with --input")
        return ExampleBatch(predictor.file_batch(file).to(model.device), [])
    if not isinstance(predictor, SupportsTextInput):
        raise DataError(f"expected a model of texts or files, found a model of kind {model.config.kind!r}; give another run")
    whole = "\n".join(read_lines(file, allow_empty=True)) if file is not None else check_text(text or "", "text")
    row, most = predictor.encode(whole), model.config.max_seq_len - special_tokens_of(predictor, "source").n_added
    check_long_text_policy(too_long, "truncate", "refuse")
    if not row:
        raise DataError(phrase("errors.no_token", "{place}: expected a text of at least one token, found none", place=str(file or "text")))
    if too_long == "refuse":
        check_length("text", len(row), most)
    truncated, n_dropped_tokens = row[:most], max(len(row) - most, 0)
    notes = [message("comparison.notes.truncated", tokens=len(row), most=most)] if n_dropped_tokens else []
    batch, added = predictor.text_batch(truncated, target) if isinstance(predictor, Translator) else predictor.text_batch(truncated)
    return ExampleBatch(batch.to(model.device), notes + added, n_dropped_tokens)
