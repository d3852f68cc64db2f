"""Alignment error rate of cross-attention: how well heads link the words that translate each other (Och and Ney 2003)."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from transom.config.data import PhrasebookConfig
from transom.data.synthetic.phrasebook.generate import generate_linked_phrasebook
from transom.data.synthetic.phrasebook.linked_text import WordLink, word_links
from transom.data.tokenizer.tokenizer import Tokenizers
from transom.decoding.inference import ProgressCallback, ignore_progress
from transom.errors import ConfigError, DataError
from transom.inspection.alignment import cross_attention_addresses, cross_attention_weights, merge_subwords, word_labels
from transom.models.base import Seq2SeqModel

DIAGONAL = "diagonal"
"""Address of the baseline that links each target word with the source word at the same relative position."""


class LinkedPair(NamedTuple):
    """A sentence pair whose word links are known.

    Attributes:
        source: source sentence.
        target: target sentence.
        links: links of their whitespace-separated words.
    """

    source: str
    target: str
    links: Sequence[WordLink]


class AlignmentError(NamedTuple):
    """Alignment error rate of one head, of the mean of heads, or of the baseline, over all pairs.

    Attributes:
        address: address of the cross-attention layer; empty for the mean over all layers, ``DIAGONAL`` for the baseline.
        head: index of the head; None for the mean over the heads.
        aer: 1 - (|A and S| + |A and P|) / (|A| + |S|), for found links A, sure links S and sure or possible links P; from 0 to 1.
        precision: |A and P| / |A|.
        recall: |A and S| / |S|.
        n_links: |A|.
    """

    address: str
    head: int | None
    aer: float
    precision: float
    recall: float
    n_links: int


def linked_pairs(data: Any, n: int, part: Literal["valid", "test"] = "test", to: str | None = None) -> list[LinkedPair]:
    """Generate pairs of the phrasebook that a run was trained on, with the word links of its grammar.

    Args:
        data: data section of the run's recipe.
        n: number of pairs.
        part: split of the pairs. Those of "test" have word combinations that do not occur in training.
        to: tag of the target language of a multilingual model.

    Raises:
        ConfigError: the run was trained on other data, whose word links are not known, or the tag is missing or unknown.
    """
    languages = {each.tag: each for each in getattr(data, "languages", ())}
    if (to is not None or languages) and to not in languages:
        raise ConfigError(f"to: expected {' or '.join(languages) or 'none for a model of one language'}, found {to or 'none'}")
    chosen = data if to is None else languages[to]
    config = getattr(chosen, "generate", None)
    if not isinstance(config, PhrasebookConfig):
        raise ConfigError(
            "expected a run of the phrasebook, whose grammar has word links, found other data; train one: transom train phrasebook"
        )
    if n > (most := getattr(config, f"n_{part}")):
        raise ConfigError(f"pairs: expected at most {most:,}, the {part} pairs of the run, found {n:,}")
    splits = generate_linked_phrasebook(config.model_copy(update={"n_train": 0, "n_valid": 0, "n_test": 0, f"n_{part}": n}))
    found = splits.parts[part]
    if getattr(chosen, "reverse", False):
        found = found.swapped()
    return [LinkedPair(source, target, word_links(source, target)) for source, target in zip(found.source, found.target, strict=True)]


class _Counts:
    """Counts of links over pairs."""

    def __init__(self) -> None:
        self.found = self.found_possible = self.found_sure = self.sure = 0

    def add(self, found: set[tuple[int, int]], links: Sequence[WordLink]) -> None:
        """Add the links of a pair: those found, and the known ones."""
        sure, possible = {each[:2] for each in links if each.sure}, {each[:2] for each in links}
        self.found, self.sure = self.found + len(found), self.sure + len(sure)
        self.found_possible, self.found_sure = self.found_possible + len(found & possible), self.found_sure + len(found & sure)

    def error(self, address: str, head: int | None) -> AlignmentError:
        """Return the rates."""
        aer = 1 - (self.found_sure + self.found_possible) / max(self.found + self.sure, 1)
        return AlignmentError(address, head, aer, self.found_possible / max(self.found, 1), self.found_sure / max(self.sure, 1), self.found)


def attended_links(weights: Tensor, n_source: int, n_before: int = 0) -> set[tuple[int, int]]:
    """Link each target word with the source word to which it attends most; a word that attends most to another symbol has no link.

    Args:
        weights: weights of target words, (target, symbols), over ``n_before`` tags, the source words and the end-of-sequence symbol.
        n_source: number of source words.
        n_before: number of language tags before the source words.
    """
    best = (weights.argmax(-1) - n_before).tolist()
    return {(i, j) for j, i in enumerate(best) if 0 <= i < n_source}


def alignment_errors(
    model: Seq2SeqModel,
    tokenizers: Tokenizers,
    pairs: Sequence[LinkedPair],
    to: str | None = None,
    notify: ProgressCallback = ignore_progress,
) -> list[AlignmentError]:
    """Compute the alignment error rate of every cross-attention head, of each layer's mean, of the mean of all, and of a baseline.

    Each target word is linked with the source word to which it attends most while it is predicted, with subwords merged to words.

    Args:
        model: an encoder-decoder in evaluation mode.
        tokenizers: source and target tokenizers.
        pairs: sentence pairs with known word links.
        to: tag of the target language of a multilingual model.
        notify: progress callback, called with the number of pairs done and of all pairs.

    Raises:
        ConfigError: the model has no cross-attention.
        DataError: a sentence exceeds the context window.
    """
    addresses = cross_attention_addresses(model)
    if not addresses:
        raise ConfigError("expected a model with cross-attention, found model.attention.kind = 'none'; use another run")
    counts = dict[tuple[str, int | None], _Counts]()
    for done, pair in enumerate(pairs, 1):
        words = _word_weights(model, tokenizers, pair, to)
        n_source, n_target = len(pair.source.split()), len(pair.target.split())
        n_before = words.shape[-1] - n_source - 1
        maps = dict[tuple[str, int | None], Tensor]()
        for address, of_layer in zip(addresses, words, strict=True):
            maps |= {(address, head): weights for head, weights in enumerate(of_layer)}
        maps |= {(address, None): of_layer.mean(0) for address, of_layer in zip(addresses, words, strict=True)}
        maps["", None] = words.mean((0, 1))
        found = {key: attended_links(weights[:n_target], n_source, n_before) for key, weights in maps.items()}
        found[DIAGONAL, None] = {(int((j + 0.5) * n_source / n_target), j) for j in range(n_target)}
        for key, links in found.items():
            counts.setdefault(key, _Counts()).add(links, pair.links)
        notify(done, len(pairs))
    return [each.error(*key) for key, each in counts.items()]


def _word_weights(model: Seq2SeqModel, tokenizers: Tokenizers, pair: LinkedPair, to: str | None) -> Tensor:
    """Return the weights of all layers and heads from target to source words, (n_layers, n_heads, target, source), with end symbols."""
    tokens = [*tokenizers.source.language_prefix(to), *tokenizers.source.encode(pair.source)], tokenizers.target.encode(pair.target)
    special = tokenizers.source.special_tokens, tokenizers.target.special_tokens
    most = model.config.max_seq_len - max(side.n_added for side in special)
    if (longest := max(map(len, tokens))) > most:
        raise DataError(f"expected pairs of at most {most} tokens to align, found {longest}: {pair.source}")
    weights = cross_attention_weights(model, *tokens, *special)
    columns, rows = (word_labels(*side, True)[0] for side in zip((tokenizers.source, tokenizers.target), tokens, strict=True))
    merged = torch.stack([merge_subwords(each, columns, rows) for each in weights.flatten(0, 1)])
    return merged.unflatten(0, weights.shape[:2])
