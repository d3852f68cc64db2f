"""Check an export by running it: the transformers library and transom compute the logits of the same random inputs."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transom.config.architecture import ModelConfig
from transom.config.vision import ImageClassifierConfig
from transom.data.tokenizer.tokenizer import Tokenizer
from transom.errors import ConfigError, TransomError
from transom.exchange.family import Family
from transom.exchange.tokenizer.tokenizer_exchange import pieces_without_id
from transom.exchange.tokenizer.tokenizer_files import input_template
from transom.models.base import Network
from transom.models.encoder import TextEmbedderTransformer

TOLERANCE = 1e-4
"""Largest difference of the logits, relative to the largest, in float32. Correct exports reach 1e-6; wrong ones differ by 1e-2 or more."""

TEXTS = ("The cat sat on the mat.", "  two  spaces\n", "Über 12,345 naïve Äpfel", "x")
"""Texts whose token ids are compared."""

N_ROWS, LENGTH = 2, 32
"""Number of random inputs and their maximum length in tokens."""


@dataclass(frozen=True)
class Agreement:
    """Agreement of both libraries on random inputs.

    Attributes:
        max_difference: largest absolute difference of the logits.
        max_logit: largest absolute logit.
        n_logits: number of compared logits.
    """

    max_difference: float
    max_logit: float
    n_logits: int

    @property
    def relative(self) -> float:
        """Largest difference, relative to the largest logit."""
        return self.max_difference / max(self.max_logit, 1e-30)


def import_transformers() -> Any:
    """Import the transformers library.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import transformers
    except ImportError as error:
        raise ConfigError(
            "export: expected the transformers library, which checks the export by running it, found none; pip install 'transom[export]'"
        ) from error
    return transformers


def check_export(model: Network, folder: Path, family: Family) -> Agreement:
    """Load an export with the library's class for it, and compare its logits in float32 with those of the model.

    Args:
        model: the model, in float32 and evaluation mode.
        folder: the export.
        family: its family.

    Raises:
        TransomError: the logits differ by more than ``TOLERANCE``.
    """
    return compare_logits(model, load_export(folder, family), folder)


def load_export(folder: Path, family: Family) -> Any:
    """Load an export with the library's class for it, in float32."""
    transformers = import_transformers()
    with _quiet(transformers):
        return getattr(transformers, family.auto_class).from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()


def compare_logits(model: Network, loaded: Any, folder: Path) -> Agreement:
    """Compare the logits of a model and of the library's model that was loaded from its export.

    Raises:
        TransomError: they differ by more than ``TOLERANCE``.
    """
    ours, theirs = _logits(model, loaded)
    if ours.shape != theirs.shape:
        raise TransomError(
            f"{folder}: expected logits of shape {tuple(ours.shape)}, found {tuple(theirs.shape)}; the export was not written"
        )
    found = Agreement(float((ours - theirs).abs().max()), float(ours.abs().max()), ours.numel())
    if not found.relative <= TOLERANCE:
        raise TransomError(
            f"{folder}: expected the logits of the model within {TOLERANCE:g}, relative to the largest, found a difference of"
            f" {found.relative:.1e}; the export was not written. This is an error of transom: please report it"
        )
    return found


def check_token_ids(tokenizer: Tokenizer, task: str, folder: Path) -> None:
    """Compare the token ids of the library's tokenizer of an export, special tokens included, with those that the model reads.

    A text with pieces that were left out, which are unknown to the model, is not compared: the library splits it into others.

    Raises:
        TransomError: they differ.
    """
    theirs = import_transformers().AutoTokenizer.from_pretrained(folder, local_files_only=True)
    special, are_left_out = tokenizer.special_tokens, bool(pieces_without_id(tokenizer))
    for text in TEXTS:
        found, ids = theirs(text)["input_ids"], tokenizer.encode(text)
        expected = input_template(special, task).surround(ids)
        if found != expected and not (are_left_out and special.unk_token_id in ids):
            raise TransomError(
                f"{folder}: expected the token ids {expected} of {text!r}, found {found} in the library's tokenizer; the export was not"
                " written. This is an error of transom: please report it"
            )


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Hide the library's progress bars in a ``with`` block."""
    logging = transformers.utils.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _logits(model: Network, loaded: Any) -> tuple[Tensor, Tensor]:
    """Return the logits of both models for the same random inputs."""
    config: Any = model.config
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        if isinstance(config, ImageClassifierConfig):
            pixels = torch.rand(N_ROWS, config.channels, config.image_size, config.image_size, generator=generator)
            mean, std = (torch.tensor(each)[:, None, None] for each in (config.pixel_mean, config.pixel_std))
            return model(pixels), loaded(pixel_values=(pixels - mean) / std).logits
        first, *second = _token_rows(config, generator)
        if isinstance(model, TextEmbedderTransformer):
            batch = model.as_batch(first, decoder_tokens=first)
            return model.encode(batch.source), loaded(input_ids=first).last_hidden_state
        if second:
            return model(first, decoder_tokens=second[0]), loaded(input_ids=first, decoder_input_ids=second[0]).logits
        return model(first), loaded(input_ids=first).logits


def _token_rows(config: ModelConfig, generator: torch.Generator) -> list[Tensor]:
    """Return random token ids for each side; padding is none of them, since the library derives a mask from it in some families."""
    length = min(LENGTH, getattr(config, "max_seq_len", LENGTH))
    pad = getattr(config, "pad_token_id", None)
    rows = []
    for name in config.VOCABULARIES:
        tokens = torch.randint(getattr(config, name), (N_ROWS, length), generator=generator)
        rows.append(tokens if pad is None else torch.where(tokens == pad, (pad + 1) % getattr(config, name), tokens))
    return rows
