"""Input of the checks: a model, validation batches, metrics of its training, and figures that several checks share."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from transom.config.recipe import Recipe
from transom.config.vision import ImageClassifierConfig
from transom.data.batch import Batch
from transom.data.tokenizer.special_tokens import EOS, PAD, SOS, UNK
from transom.models.base import GenerativeModel, Network, Seq2SeqModel, SequencesLike
from transom.models.encoder import TextEmbedderTransformer
from transom.models.inputs import TensorBatch, TokenSequences

FIRST_TOKEN = UNK + 1
"""First token id that is not special."""

MAX_LENGTH = 64
"""Tokens per row of the batch that the checks of the structure run."""

MAX_ROWS = 4
"""Rows of that batch."""

Outputs = Callable[[TensorBatch], Tensor]


class TrainingTokens(NamedTuple):
    """Tokens of the training data.

    Attributes:
        counts: number of occurrences of each token id, by "source" and "target".
        is_whole_epoch: whether all training samples were counted.
    """

    counts: Mapping[str, Tensor]
    is_whole_epoch: bool


@dataclass
class Checkup:
    """A model under examination. No check changes the model or writes files.

    Attributes:
        model: the model in float32, in evaluation mode.
        batches: validation batches; empty without data.
        recipe: recipe of the run; None if there is none.
        metrics: records of ``metrics.jsonl``; empty without a run.
        training_tokens: tokens of the training data; None if these were not read.
        no_data: why there are no validation batches.
    """

    model: Network
    batches: Sequence[Batch] = ()
    recipe: Recipe | None = None
    metrics: Sequence[Mapping[str, Any]] = ()
    training_tokens: TrainingTokens | None = None
    no_data: str = "no validation data were given"
    _shared: dict[str, Any] = field(default_factory=dict, repr=False)

    def share(self, name: str, compute: Callable[["Checkup"], Any]) -> Any:
        """Return a figure that several checks read; it is computed once."""
        if name not in self._shared:
            self._shared[name] = compute(self)
        return self._shared[name]

    @cached_property
    def n_steps(self) -> int:
        """Number of training steps so far; 0 without metrics."""
        return max((int(record["step"]) for record in self.metrics), default=0)

    @cached_property
    def probe(self) -> TensorBatch:
        """A small batch with rows of different lengths: of the validation data, or of random tokens without data."""
        if not self.batches:
            return random_batch(self.model)
        batch = tensor_batch(self.batches[len(self.batches) // 2].to(self.model.device))
        return first_tokens(select_rows(batch, _varied_rows(batch)), MAX_LENGTH)

    @cached_property
    def exact(self) -> Network:
        """A copy of the model in float64."""
        return copy.deepcopy(self.model).double()

    @cached_property
    def bf16(self) -> Network:
        """A copy of the model in bfloat16."""
        return copy.deepcopy(self.model).bfloat16()

    @cached_property
    def exact_outputs(self) -> Tensor:
        """Outputs of the float64 copy for the probe."""
        return outputs(self.exact, self.probe)

    @cached_property
    def bound(self) -> float:
        """Largest difference between two float32 passes over the same input that rounding explains.

        Each pass differs from the exact one by its rounding error. The difference between float32 and float64 passes measures
        this error; the bound is 8 times as large.
        """
        return rounding_bound(outputs(self.model, self.probe), self.exact_outputs)


def rounding_bound(found: Tensor, exact: Tensor) -> float:
    """Return 8 max |found - exact| + 16 eps max |exact|, with eps of the dtype of ``found``; NaN if ``found`` has one."""
    error = float((found.double() - exact).abs().max())
    return 8 * error + 16 * torch.finfo(found.dtype).eps * float(exact.abs().max())


def sequences(text: SequencesLike | None) -> TokenSequences | None:
    """Convert token sequences to one position per token."""
    if text is None:
        return None
    return TokenSequences(
        text.tokens, text.positions.expand_as(text.tokens), text.segments, text.prefix, text.text_length, text.token_types
    )


def tensor_batch(batch: Any) -> TensorBatch:
    """Convert a batch of any task to plain tensors, without labels."""
    second = getattr(batch, "decoder_input", None) or getattr(batch, "target", None)
    return TensorBatch(sequences(getattr(batch, "source", None)), sequences(second), getattr(batch, "pixels", None))


def change_texts(batch: TensorBatch, change: Callable[[TokenSequences], TokenSequences]) -> TensorBatch:
    """Apply a function to the source and to the decoder input of a batch."""
    source, decoder_input = (None if text is None else change(text) for text in (batch.source, batch.decoder_input))
    return replace(batch, source=source, decoder_input=decoder_input)


def select_rows(batch: TensorBatch, rows: Sequence[int]) -> TensorBatch:
    """Return some rows of a batch."""
    index = list(rows)

    def selected(text: TokenSequences) -> TokenSequences:
        return text.map(lambda x: x[index])

    found = change_texts(batch, selected)
    return found if batch.pixels is None else replace(found, pixels=batch.pixels[index])


def columns(text: TokenSequences, part: slice) -> TokenSequences:
    """Return some columns of token sequences."""
    return text.map(lambda x: x[:, part])


def first_tokens(batch: TensorBatch, n: int) -> TensorBatch:
    """Cut each row after ``n`` tokens, and columns that hold only padding."""
    return change_texts(batch, lambda text: columns(text, slice(min(n, int((text.segments > 0).sum(1).max())))))


def n_rows(batch: TensorBatch) -> int:
    """Return the number of rows of a batch."""
    first = batch.pixels if batch.pixels is not None else (batch.source or batch.decoder_input)
    return len(first if isinstance(first, Tensor) else first.tokens)  # type: ignore[union-attr]


def _varied_rows(batch: TensorBatch) -> list[int]:
    """Return rows of different lengths, among them the shortest and the longest."""
    text = batch.decoder_input or batch.source
    n = n_rows(batch)
    if text is None or n <= MAX_ROWS:
        return list(range(min(n, MAX_ROWS)))
    order = (text.segments > 0).sum(1).argsort(stable=True).tolist()
    return sorted({order[round(i * (n - 1) / (MAX_ROWS - 1))] for i in range(MAX_ROWS)})


def random_batch(model: Network, rows: int = MAX_ROWS, length: int = 24, same_length: bool = False) -> TensorBatch:
    """Build a batch of random tokens or pixels, the same every time.

    Args:
        model: the model that reads the batch.
        rows: number of rows.
        length: largest number of tokens per row, start and end tokens included; at most the context window.
        same_length: whether all rows have ``length`` tokens; otherwise they become shorter, to half the length.
    """
    c, draw = model.config, torch.Generator().manual_seed(1)
    if isinstance(c, ImageClassifierConfig):
        return TensorBatch(pixels=torch.rand(rows, c.channels, c.image_size, c.image_size, generator=draw).to(model.device))
    length = max(min(length, getattr(c, "max_seq_len", length)), 2)
    lengths = torch.tensor([length if same_length else max(length - i * length // (2 * rows), 2) for i in range(rows)])

    def text(vocabulary: str, first: int | None) -> TokenSequences:
        size = getattr(c, vocabulary)
        tokens = torch.randint(min(FIRST_TOKEN, size - 1), size, (rows, length), generator=draw)
        if first is None:
            tokens[torch.arange(rows), lengths - 1] = EOS
        else:
            tokens[:, 0] = first
        mask = torch.arange(length) < lengths[:, None]
        return TokenSequences.from_tokens(tokens.where(mask, PAD).to(model.device), mask.to(model.device))

    if isinstance(model, Seq2SeqModel):
        return TensorBatch(text(c.VOCABULARIES[0], None), text(c.VOCABULARIES[-1], SOS))
    first = text("vocab_size", EOS)
    if isinstance(model, TextEmbedderTransformer):
        return TensorBatch(first, text("vocab_size", EOS))
    return TensorBatch(decoder_input=first) if isinstance(model, GenerativeModel) else TensorBatch(first)


def output_text(model: Network, batch: TensorBatch) -> TokenSequences:
    """Return the tokens to whose positions the outputs of a model belong."""
    text = batch.decoder_input if isinstance(model, GenerativeModel) else batch.source
    assert text is not None
    return text


@torch.no_grad()
def padded_outputs(model: Network, batch: TensorBatch) -> Tensor:
    """Return the logits: (batch, length, vocab) or (batch, classes); of an embedder both vectors of each pair, (batch, 2 d_model)."""
    if isinstance(model, TextEmbedderTransformer):
        return torch.cat(model.logit_factors(batch), -1)  # type: ignore[arg-type]
    if batch.pixels is not None:
        batch = replace(batch, pixels=batch.pixels.to(model.unembedding.weight.dtype))
    return model(batch)


def outputs(model: Network, batch: TensorBatch) -> Tensor:
    """Return the outputs at all tokens, padding left out, (tokens, vocab), or of all rows."""
    found = padded_outputs(model, batch)
    return found if found.ndim == 2 else found[output_text(model, batch).segments > 0]


def largest_difference(a: Tensor, b: Tensor) -> float:
    """Return max |a - b|; infinity if one is not finite, 0 for empty tensors."""
    if not a.numel():
        return 0.0
    return float((a.double() - b.double()).abs().max().nan_to_num(nan=torch.inf))


def other_tokens(text: TokenSequences, where: Tensor, size: int) -> TokenSequences:
    """Replace the tokens where ``where`` is True by other ones that are not special."""
    n = max(size - FIRST_TOKEN, 1)
    changed = (text.tokens - min(FIRST_TOKEN, size - 1)).remainder(n).add(1 + n // 2).remainder(n) + min(FIRST_TOKEN, size - 1)
    changed = torch.where(changed == text.tokens, (changed - 1).clamp(min=0), changed)
    return replace(text, tokens=torch.where(where, changed, text.tokens))
