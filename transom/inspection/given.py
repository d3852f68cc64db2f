"""What a loaded model reads of a person's own text or file, as a batch of one row."""

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
    """What answers about files that hold no text, such as images."""

    NOUN: ClassVar[str]
    """What a file holds."""

    def file_batch(self, file: Path) -> Batch:
        """Make a batch of a file."""
        ...


@runtime_checkable
class ReadsTexts(Protocol):
    """What answers about texts."""

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, without special symbols."""
        ...

    def text_batch(self, tokens: Sequence[int]) -> tuple[Batch, list[str]]:
        """Make a batch of tokens, at most ``max_seq_len`` - 1; return what was added to them, for people, beside it."""
        ...


class Given(NamedTuple):
    """A batch of one row.

    Attributes:
        batch: what the model reads.
        notes: what was left out or added, for people.
        n_left_out: tokens of the text that are not in the batch.
    """

    batch: Any
    notes: list[str]
    n_left_out: int = 0


def given(answer: Any, text: str | None, file: Path | None, too_long: Literal["truncate", "refuse"] = "truncate") -> Given:
    """Make a batch of a text or of a file that the model reads.

    A translator reads its own translation of the text beside it.

    Args:
        answer: a loaded run.
        text: the text; None for that of the file.
        file: a text, or what a model that ``ReadsFiles`` reads.
        too_long: of a text of more tokens than the model reads, read the beginning, or refuse it.

    Raises:
        DataError: there is nothing to read, or not what the model reads, or the text is too long and is to be refused.
    """
    model = answer.model
    if isinstance(answer, ReadsFiles):
        if file is None:
            raise DataError(f"expected {article(answer.NOUN)} for this model: give its file with --input")
        return Given(answer.file_batch(file).to(model.device), [])
    if not isinstance(answer, ReadsTexts):
        raise DataError(f"expected a model of texts or of files, found one of kind {model.config.kind}; name another run")
    whole = "\n".join(read_lines(file, empty=True)) if file is not None else check_text(text or "", "--text")
    row, most = answer.encode(whole), model.config.max_seq_len - 1
    if not row:
        raise DataError(f"{file or '--text'}: expected a text of at least one token, found none")
    ((cut, *_), _, (n_left_out,)), notes = windows_of([row], most, too_long), list[str]()
    if n_left_out:
        notes.append(f"the text has {len(row):,} tokens, of which the model reads the first {most:,}")
    batch, added = answer.text_batch(cut)
    return Given(batch.to(model.device), notes + added, n_left_out)
