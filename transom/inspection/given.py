"""A batch of one row from a user's text or file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

from transom.data.batch import Batch
from transom.data.text.text import check_text, read_lines
from transom.decoding.predictors.long_texts import windows_of
from transom.errors import DataError
from transom.inspection.describe import article


@runtime_checkable
class ReadsFiles(Protocol):
    """A predictor whose input is a file without text, such as an image."""

    NOUN: ClassVar[str]
    """Noun for the content of a file, as ``image``."""

    def file_batch(self, file: Path) -> Batch:
        """Build a batch from a file."""
        ...


@runtime_checkable
class ReadsTexts(Protocol):
    """A predictor whose input is text."""

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, without special tokens."""
        ...

    def text_batch(self, tokens: Sequence[int]) -> tuple[Batch, list[str]]:
        """Build a batch from at most ``max_seq_len`` - 1 tokens; return it with notes on what was added."""
        ...


class Given(NamedTuple):
    """A batch of one row.

    Attributes:
        batch: input of the model.
        notes: sentences on dropped or added input.
        n_left_out: number of tokens of the text that are not in the batch.
    """

    batch: Any
    notes: list[str]
    n_left_out: int = 0


def given(answer: Any, text: str | None, file: Path | None, too_long: Literal["truncate", "refuse"] = "truncate") -> Given:
    """Build a batch of one row from a text or file.

    For a translator the batch also holds the model's own translation of the text.

    Args:
        answer: a loaded run.
        text: the text; None to read ``file``.
        file: a text file, or a file of the kind that a ``ReadsFiles`` predictor reads.
        too_long: truncate a text that exceeds the context window, or raise.

    Raises:
        DataError: the input is empty or of the wrong kind, or it exceeds the context window and ``too_long`` is "refuse".
    """
    model = answer.model
    if isinstance(answer, ReadsFiles):
        if file is None:
            raise DataError(f"expected {article(answer.NOUN)} for this model, found no file; give one with --input")
        return Given(answer.file_batch(file).to(model.device), [])
    if not isinstance(answer, ReadsTexts):
        raise DataError(f"expected a model of texts or files, found one of kind {model.config.kind}; name another run")
    whole = "\n".join(read_lines(file, empty=True)) if file is not None else check_text(text or "", "--text")
    row, most = answer.encode(whole), model.config.max_seq_len - 1
    if not row:
        raise DataError(f"{file or '--text'}: expected a text of at least one token, found none")
    ((cut, *_), _, (n_left_out,)), notes = windows_of([row], most, too_long), list[str]()
    if n_left_out:
        notes.append(f"the text of {len(row):,} tokens was truncated to the context window of {most:,} tokens")
    batch, added = answer.text_batch(cut)
    return Given(batch.to(model.device), notes + added, n_left_out)
