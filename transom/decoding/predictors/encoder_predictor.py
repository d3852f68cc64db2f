"""Base class of encoder predictors: splits texts into windows and runs the encoder on batches of similar length."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from transom.config.decoding import TextInferenceConfig
from transom.data.batch import Batch, LabeledTextBatch
from transom.data.labeled.labeled_texts import labeled_text_batch, labeled_text_batches
from transom.data.labeled.text_pairs import Text, TokenRow, encode_texts
from transom.data.tokenizer.tokenizer import Tokenizer
from transom.decoding.inference import ProgressCallback, eval_mode, ignore_progress, reject_single_item, unless_edited
from transom.decoding.predictors.long_texts import LongTextPolicy, Windows, split_windows
from transom.decoding.predictors.results import described
from transom.models.encoder import EncoderOnlyTransformer
from transom.planning.precision import Precision

Encoder = TypeVar("Encoder", bound=EncoderOnlyTransformer)


@dataclass(frozen=True, repr=False)
class EncoderPredictor(Generic[Encoder]):
    """Base class of predictors that use an encoder.

    Attributes:
        model: an encoder, prepared for inference.
        tokenizer: the tokenizer of the texts.
        inference_config: inference settings of the recipe.
        precision: dtype of the matrix products with the reason for the choice; None if none was chosen.
        encoder_backend: a faster implementation of the same encoder; None runs the model itself.
        origin: run folder from which the predictor was loaded, for ``repr``; None if it was not loaded.
    """

    model: Encoder
    tokenizer: Tokenizer
    inference_config: TextInferenceConfig = field(default_factory=TextInferenceConfig)
    precision: Precision | None = None
    encoder_backend: Encoder | None = None
    origin: str | None = None

    def __repr__(self) -> str:
        """Return classes, number of parameters, precision and origin on one line."""
        n_parameters = sum(each.numel() for each in self.model.parameters())
        precision = None if self.precision is None else self.precision.name
        return described(
            type(self).__name__, classes_in_short(getattr(self.model.config, "classes", ())), n_parameters, precision, self.origin
        )

    def embed(
        self,
        texts: Sequence[str],
        normalize: bool = True,
        too_long: LongTextPolicy = "truncate",
        notify: ProgressCallback = ignore_progress,
    ) -> NDArray[np.float32]:
        """Return the mean of the last hidden states of each text, (texts, d_model); arguments as in ``Embedder.embed_with_details``."""
        from transom.decoding.predictors.embedder import Embedder

        embedder = Embedder(self.model, self.tokenizer, self.inference_config, self.precision, self.encoder_backend)
        vectors: NDArray[np.float32] = embedder.embed_with_details(texts, normalize, too_long, notify).vectors.numpy()
        return vectors

    @property
    def max_tokens(self) -> int:
        """Maximum number of tokens of a text or window, special tokens excluded."""
        return self.model.config.max_seq_len - self.tokenizer.special_tokens.n_added

    def split_windows(self, texts: Sequence[Text], too_long: LongTextPolicy) -> Windows:
        """Tokenize texts, or pairs of texts, and split or truncate those longer than the context window.

        Raises:
            ConfigError: ``too_long`` is invalid, or "window" for a pair.
            DataError: a text is too long and ``too_long`` is "refuse", or ``texts`` is a single text.
        """
        reject_single_item(texts, "text")
        rows = encode_texts(self.tokenizer, texts)
        return split_windows(rows, self.model.config.max_seq_len, self.tokenizer.special_tokens, too_long)

    def encode(self, text: str) -> list[int]:
        """Return the token IDs of a text, without special tokens."""
        return self.tokenizer.encode(text)

    def text_batch(self, tokens: Sequence[int]) -> tuple[Batch, list[str]]:
        """Return a batch of one text, given by its token IDs, and no notes; see ``inspection.example_batch``."""
        return labeled_text_batch([tokens], [0], [0], self.tokenizer.special_tokens), []

    @torch.inference_mode()
    def run_batched(
        self,
        rows: Sequence[TokenRow],
        result: Float[Tensor, "windows width"],
        forward: Callable[[Encoder, LabeledTextBatch], Tensor],
        notify: ProgressCallback,
    ) -> Float[Tensor, "windows width"]:
        """Run the encoder once on each window, in batches of similar length.

        Args:
            rows: token IDs of each window or pair, without special tokens.
            result: tensor that is filled with the outputs and returned.
            forward: computes the outputs of a batch from (encoder, batch).
            notify: progress callback, called with the number of windows done and the total.
        """
        n_done = 0
        with eval_mode(self.model):
            config, special, batch_tokens = self.model.config, self.tokenizer.special_tokens, self.inference_config.batch_tokens
            for batch in labeled_text_batches(rows, [0] * len(rows), config.max_seq_len, batch_tokens, special, config.n_token_types):
                result[list(batch.sample_ids)] = forward(unless_edited(self.encoder_backend, self.model), batch.to(self.model.device)).to(
                    result
                )
                n_done += len(batch.sample_ids)
                notify(n_done, len(rows))
        return result


def classes_in_short(classes: Sequence[str], max_tokens: int = 5) -> list[str]:
    """Return the number of classes and the first few names as one string in a list, for ``repr``; an empty list without classes.

    >>> classes_in_short(["cat", "dog"]), classes_in_short("abcdef")
    (['2 classes (cat, dog)'], ['6 classes (a, b, c, d, e, ...)'])
    """
    rest = ["..."] if len(classes) > max_tokens else []
    return [f"{len(classes)} classes ({', '.join([*classes[:max_tokens], *rest])})"] if classes else []
