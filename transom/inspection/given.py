"""What a loaded model reads of a person's own text or image, as a batch of one row."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from transom.decoding.generator import Generator
from transom.decoding.image_classifier import ImageClassifier
from transom.decoding.load import Answer
from transom.decoding.translator import Translator
from transom.errors import DataError
from transom.inputs.batch import ImageBatch, LabelledBatch, LanguageBatch, Sequences, TranslationBatch, translation_batch
from transom.inputs.labelled import label_batch
from transom.inputs.special import EOS
from transom.inputs.text import check_text, read_lines
from transom.inputs.vision.images import decode, read_file


class Given(NamedTuple):
    """A batch of one row.

    Attributes:
        batch: what the model reads.
        notes: what was left out or added, for people.
    """

    batch: Any
    notes: list[str]


def given(answer: Answer, text: str | None, file: Path | None) -> Given:
    """Make a batch of a text, of its beginning if it is longer than the model reads, or of an image.

    A translator reads its own translation of the text beside it.

    Args:
        answer: a loaded run.
        text: the text; None for that of the file.
        file: a text, or an image for a classifier of images.

    Raises:
        DataError: there is nothing to read, or no image.
    """
    device = answer.model.device
    if isinstance(answer, ImageClassifier):
        return Given(_image(answer, file).to(device), [])
    tokenizer = answer.tokenizers.source if isinstance(answer, Translator) else answer.tokenizer
    whole = "\n".join(read_lines(file, empty=True)) if file is not None else check_text(text or "", "--text")
    row, most = tokenizer.encode(whole), answer.model.config.max_seq_len - 1
    if not row:
        raise DataError(f"{file or '--text'}: expected a text of at least one token, found none")
    cut, notes = row[:most], list[str]()
    if len(row) > most:
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
    return Given(batch.to(device), notes)


def _image(answer: ImageClassifier, file: Path | None) -> ImageBatch:
    if file is None:
        raise DataError("expected an image for this model: give its file with --input")
    c = answer.model.config
    pixels = torch.from_numpy(np.stack([decode(read_file(file), str(file), c.image_size, c.channels)]))
    return ImageBatch((pixels / 255).to(answer.model.unembedding.weight), torch.zeros(1, dtype=torch.long), (0,))
