"""Batches tagged sentences. Words are split into tokens, and the first token of each word carries the label of the word."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from transom.data.batch import Indices, MaskedBatch, PaddedSequences, batch_by_tokens, sequence_lengths
from transom.data.sampler import FULL_BATCH, MicroBatching, iterate_epochs, plan_epoch
from transom.data.text.windows import Blanks, apply_blank_noising
from transom.data.tokenizer.special_tokens import OWN_TOKENS, SpecialTokens
from transom.data.tokenizer.tokenizer import Tokenizer
from transom.errors import ConfigError
from transom.tasks.tagging.tagged_files import TaggedSentences, Words


class Window(NamedTuple):
    """Consecutive words of a sentence that the model reads together.

    A sentence that fits into the context window is one window.

    Attributes:
        sample: index of the sentence.
        start: index of the window's first word in the sentence.
        tokens: token IDs of the words, without special tokens.
        first_tokens: index of each word's first token among ``tokens``.
    """

    sample: int
    start: int
    tokens: list[int]
    first_tokens: list[int]


def split_sentences(sentences: Sequence[Words], tokenizer: Tokenizer, max_tokens: int) -> list[Window]:
    """Tokenize sentences, and split long sentences between words into windows.

    Every word has at least one token. A word of more than ``max_tokens`` tokens is truncated.

    Args:
        sentences: words of each sentence.
        tokenizer: the tokenizer.
        max_tokens: maximum number of tokens per window, special tokens excluded.
    """
    known = list(dict.fromkeys(word for words in sentences for word in words))
    rows = tokenizer.encode_batch([tokenizer.space_before_words + word for word in known])
    tokens_of = {word: row[:max_tokens] or [tokenizer.blank_token_id] for word, row in zip(known, rows, strict=True)}
    found = list[Window]()
    for sample, words in enumerate(sentences):
        window = Window(sample, 0, [], [])
        for index, word in enumerate(words):
            if len(window.tokens) + len(tokens_of[word]) > max_tokens:
                found.append(window)
                window = Window(sample, index, [], [])
            window.first_tokens.append(len(window.tokens))
            window.tokens.extend(tokens_of[word])
        if words:
            found.append(window)
    return found


class TaggedBatch(MaskedBatch):
    """A batch of sentences in which only the first token of each word has a label and contributes to the loss."""


def tagged_batch(
    read: Sequence[Window],
    rows: Sequence[Sequence[int]],
    labels: Sequence[Sequence[int]],
    samples: Sequence[int],
    special: SpecialTokens = OWN_TOKENS,
) -> TaggedBatch:
    """Build a batch of windows, with the special tokens of the tokenizer around each.

    Args:
        read: the windows.
        rows: input tokens of each window, some of which blank noising may have replaced.
        labels: labels of the words of each window.
        samples: indices of the windows.
        special: special tokens of the tokenizer.
    """
    source = PaddedSequences.pad([special.text(row) for row in rows], special.padding)
    numbers, loss_mask = torch.zeros_like(source.tokens), torch.zeros_like(source.tokens, dtype=torch.bool)
    for row, (window, of_words) in enumerate(zip(read, labels, strict=True)):
        first_positions = torch.tensor(window.first_tokens) + len(special.template.prefix)
        numbers[row, first_positions], loss_mask[row, first_positions] = torch.tensor(of_words), True
    return TaggedBatch(source, numbers, loss_mask, tuple(samples))


def window_labels(read: Sequence[Window], numbers: Sequence[Sequence[int]]) -> list[Sequence[int]]:
    """Return the labels of the words of each window.

    Args:
        read: the windows.
        numbers: labels of the words of each sentence.
    """
    return [numbers[window.sample][window.start : window.start + len(window.first_tokens)] for window in read]


def inference_batches(
    read: Sequence[Window], labels: Sequence[Sequence[int]] | None, batch_tokens: int, special: SpecialTokens = OWN_TOKENS
) -> list[TaggedBatch]:
    """Batch windows of similar length, for one pass over all windows.

    Args:
        read: the windows.
        labels: labels of the words of each window, from ``window_labels``; None if they are unknown.
        batch_tokens: maximum number of tokens per batch, padding included.
        special: special tokens of the tokenizer.
    """
    if not read:
        return []
    lengths = sequence_lengths([window.tokens for window in read]) + special.n_added
    order = np.argsort(lengths, kind="stable")
    batches = list[TaggedBatch]()
    for part in map(np.ndarray.tolist, batch_by_tokens(order, lengths, batch_tokens)):
        chosen = [read[i] for i in part]
        of_words = [[0] * len(window.first_tokens) for window in chosen] if labels is None else [labels[i] for i in part]
        batches.append(tagged_batch(chosen, [window.tokens for window in chosen], of_words, part, special))
    return batches


class TaggedLoader:
    """Endless loader of training batches, which can resume at any position.

    A position is the number of windows that all ranks have read since the start of training. It is the complete state of the loader.

    Attributes:
        texts: the training sentences.
        windows: windows of the sentences, which are the training samples.
        n_samples: number of windows per epoch.
    """

    def __init__(
        self,
        texts: TaggedSentences,
        tokenizer: Tokenizer,
        classes: Sequence[str],
        *,
        max_seq_len: int,
        batch_tokens: int,
        seed: int,
        blank_noising: float = 0.0,
        micro_batching: MicroBatching = FULL_BATCH,
    ) -> None:
        """Tokenize the sentences, and split them into windows.

        Args:
            texts: sentences with their tags.
            tokenizer: the tokenizer.
            classes: all tags; the label of a tag is its index.
            max_seq_len: maximum number of tokens per window, special tokens included.
            batch_tokens: maximum number of tokens per batch, padding included, over all ranks and accumulation steps.
            seed: random seed of the order of windows and of blank noising.
            blank_noising: mean fraction of tokens replaced by the blank token.
            micro_batching: division of every batch among ranks and accumulation steps.

        Raises:
            DataError: a tag is not among the classes.
            ConfigError: a window has more than ``batch_tokens`` tokens.
        """
        self._special_tokens, self._blanks = tokenizer.special_tokens, Blanks.of(tokenizer)
        n_added = self._special_tokens.n_added
        self.texts, self.windows = texts, split_sentences(texts.words, tokenizer, max_seq_len - n_added)
        self.n_samples = len(self.windows)
        self._labels = window_labels(self.windows, texts.encode_labels(classes))
        self._lengths = sequence_lengths([window.tokens for window in self.windows]) + n_added
        if (longest := int(self._lengths.max())) > batch_tokens:
            raise ConfigError(
                f"training.batch_tokens: expected at least {longest}, the tokens of the longest sentence, found {batch_tokens}; raise"
                " training.batch_tokens or lower model.max_seq_len"
            )
        self._batch_tokens, self._seed, self._blank_noising, self._micro_batching = batch_tokens, seed, blank_noising, micro_batching

    def batches_from(self, position: int) -> Iterator[tuple[int, list[TaggedBatch]]]:
        """Yield the position after each batch, which a checkpoint stores, and the micro-batches of this rank."""
        for end, epoch, batch in iterate_epochs(position, self.n_samples, self._plan):
            yield end, [self._batch(epoch, part.tolist()) for part in self._micro_batching.split(batch)]

    def describe_sample(self, sample: int) -> str:
        """Describe the location of a window's sentence in the data, for messages."""
        return self.texts.describe_sample(self.windows[sample].sample)

    def _plan(self, epoch: int) -> list[Indices]:
        return plan_epoch(self._lengths, self._lengths, batch_tokens=self._batch_tokens, seed=self._seed, epoch=epoch)

    def _batch(self, epoch: int, samples: list[int]) -> TaggedBatch:
        read = [self.windows[i] for i in samples]
        rows = [self._with_dropout(window.tokens, (self._seed, epoch, i)) for i, window in zip(samples, read, strict=True)]
        return tagged_batch(read, rows, [self._labels[i] for i in samples], samples, self._special_tokens)

    def _with_dropout(self, tokens: list[int], key: tuple[int, int, int]) -> list[int]:
        if not self._blank_noising:
            return tokens
        found: list[int] = apply_blank_noising(np.array(tokens, np.int32), self._blank_noising, key, self._blanks).tolist()
        return found
