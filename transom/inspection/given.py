"""What a loaded model reads of a person's own text or image, as a batch of one row."""

from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from transom.data.batch import ImageBatch, LabelledBatch, LanguageBatch, Sequences, TranslationBatch, translation_batch
from transom.data.labeled.labelled import label_batch
from transom.data.text.text import check_text, read_lines
from transom.data.tokenizer.special import EOS
from transom.decoding.predictors.classifier import Classifier
from transom.decoding.predictors.embedder import Embedder
from transom.decoding.predictors.filler import Filler
from transom.decoding.predictors.generator import Generator
from transom.decoding.predictors.image_classifier import ImageClassifier
from transom.decoding.predictors.long_texts import windows_of
from transom.decoding.predictors.translator import Translator
from transom.errors import DataError
from transom.inspection.describe import article


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
    """Make a batch of a text or of an image.

    A translator reads its own translation of the text beside it.

    Args:
        answer: a loaded run.
        text: the text; None for that of the file.
        file: a text, or an image for a classifier of images.
        too_long: of a text of more tokens than the model reads, read the beginning, or refuse it.

    Raises:
        DataError: there is nothing to read, or no image, or the model reads neither, or the text is too long and is to be refused.
    """
    device = answer.model.device
    if isinstance(answer, ImageClassifier):
        return Given(_image(answer, file).to(device), [])
    if not isinstance(answer, Translator | Generator | Filler | Classifier | Embedder):
        raise DataError(f"expected a model of texts or images, found one of kind {answer.model.config.kind}; name another run")
    tokenizer = answer.tokenizers.source if isinstance(answer, Translator) else answer.tokenizer
    whole = "\n".join(read_lines(file, empty=True)) if file is not None else check_text(text or "", "--text")
    row, most = tokenizer.encode(whole), answer.model.config.max_seq_len - 1
    if not row:
        raise DataError(f"{file or '--text'}: expected a text of at least one token, found none")
    ((cut, *_), _, (n_left_out,)), notes = windows_of([row], most, too_long), list[str]()
    if n_left_out:
        notes.append(f"the text has {len(row):,} tokens, of which the model reads the first {most:,}")
    batch: TranslationBatch | LanguageBatch | LabelledBatch
    if isinstance(answer, Translator):
        translation = answer.translate([" ".join(tokenizer.decode(cut).split())])[0]
        batch = translation_batch([cut], [answer.tokenizers.target.encode(translation)[:most]], [0])
        notes.append(f"the target is the model's own translation: {translation}")
    elif isinstance(answer, Generator):
        read = Sequences.pad([[EOS, *cut]])
        batch = LanguageBatch(read, read.tokens, (0,))
    else:
        batch = label_batch([cut], [0], [0])
    return Given(batch.to(device), notes, n_left_out)


def _image(answer: ImageClassifier, file: Path | None) -> ImageBatch:
    if file is None:
        raise DataError(f"expected {article(answer.NOUN)} for this model: give its file with --input")
    return ImageBatch((answer.read(file)[None] / 255).to(answer.model.unembedding.weight), torch.zeros(1, dtype=torch.long), (0,))
