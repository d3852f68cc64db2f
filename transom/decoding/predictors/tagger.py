"""From texts to the tags of their words and the entities that these spell."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal, NamedTuple

import torch

from transom.data.labeled.entities import Entity, OfEntities, entities_of, entity_scores, scheme_of
from transom.data.labeled.tagged import CUTS, Tagged, Window, Words, reading_batches, windows
from transom.decoding.inference import Tell, evaluating, refuse_one, unheard
from transom.decoding.predictors.encoder_predictor import EncoderPredictor
from transom.decoding.search.loop import log_probabilities
from transom.models.encoder import TokenTaggerTransformer


class Span(NamedTuple):
    """A named part of a text.

    Attributes:
        label: what it is.
        text: the part.
        start: its first character, from 0.
        end: one more than its last character.
    """

    label: str
    text: str
    start: int
    end: int


class TaggedText(NamedTuple):
    """A text with the tags of its words.

    Attributes:
        words: of the text.
        tags: of each word, the likeliest.
        p: probability of each tag.
        entities: that the tags spell; none where they are not of entities.
    """

    words: list[str]
    tags: list[str]
    p: list[float]
    entities: list[Span]


class TagScores(NamedTuple):
    """How well words were tagged.

    Attributes:
        accuracy: words whose tag was found, in percent.
        n: all words.
        entities: all of them together, micro-averaged; None where tags are not of entities.
        labels: the entities of each label.
    """

    accuracy: float
    n: int
    entities: OfEntities | None
    labels: dict[str, OfEntities]


@dataclass(frozen=True)
class Tagger(EncoderPredictor[TokenTaggerTransformer]):
    """Names the tags of words.

    Attributes:
        cut: how a text is cut into words, as in ``decoding.words``.
    """

    cut: Literal["punctuation", "spaces"] = "punctuation"

    def tag(self, texts: Sequence[str | Words], tell: Tell = unheard) -> list[TaggedText]:
        """Tag the words of each text; one of more tokens than the model reads is read in windows.

        Args:
            texts: any number; one that is a list of words is not cut.
            tell: is told how many windows are done.

        Raises:
            DataError: ``texts`` is one text.
        """
        refuse_one(texts, "text")
        found = list[TaggedText]()
        wholes = [text if isinstance(text, str) else " ".join(text) for text in texts]
        places = [_places(text, self.cut) for text in texts]
        sentences = [[whole[start:end] for start, end in of_text] for whole, of_text in zip(wholes, places, strict=True)]
        plain = scheme_of(self.model.config.classes) == "plain"
        for whole, words, of_text, (tags, p) in zip(wholes, sentences, places, self.tags(sentences, tell), strict=True):
            entities = [] if plain else [_span(whole, of_text, entity) for entity in entities_of(tags)]
            found.append(TaggedText(words, tags, p, entities))
        return found

    @torch.inference_mode()
    def tags(self, sentences: Sequence[Words], tell: Tell = unheard) -> list[tuple[list[str], list[float]]]:
        """Return the likeliest tag of each word of sentences, and its probability."""
        read = windows(sentences, self.tokenizer, self.model.config.max_seq_len - 1)
        of_windows, classes = dict[int, list[tuple[str, float]]](), self.model.config.classes
        with evaluating(self.model):
            for batch in reading_batches(read, None, self.reading.batch_tokens):
                batch = batch.to(self.model.device)
                log_p, labels = log_probabilities((self.reader or self.model)(batch)[batch.counted]).max(-1)
                answers = iter(zip(labels.tolist(), log_p.exp().tolist(), strict=True))
                for window in batch.samples:
                    of_windows[window] = [(classes[label], p) for label, p in islice(answers, len(read[window].firsts))]
                tell(len(of_windows), len(read))
        return _of_sentences(read, of_windows, len(sentences))

    def score(self, known: Tagged, tell: Tell = unheard) -> TagScores:
        """Compare the tags that the model names with those of tagged sentences.

        Raises:
            DataError: a word has a tag that the model does not have.
        """
        known.numbered(classes := self.model.config.classes)
        found = [tags for tags, _ in self.tags(known.words, tell)]
        right = sum(a == b for old, new in zip(known.tags, found, strict=True) for a, b in zip(old, new, strict=True))
        n = sum(map(len, found))
        whole, of_each = (None, {}) if scheme_of(classes) == "plain" else entity_scores(known.tags, found)
        return TagScores(100 * right / n, n, whole, of_each)


def _places(text: str | Words, cut: str) -> list[tuple[int, int]]:
    """Return where each word starts and ends; words that are given have a space between them."""
    if isinstance(text, str):
        return [match.span() for match in CUTS[cut].finditer(text)]
    places, start = list[tuple[int, int]](), 0
    for word in text:
        places.append((start, start + len(word)))
        start += len(word) + 1
    return places


def _span(text: str, places: Sequence[tuple[int, int]], entity: Entity) -> Span:
    start, end = places[entity.start][0], places[entity.end - 1][1]
    return Span(entity.label, text[start:end], start, end)


def _of_sentences(read: Sequence[Window], of_windows: dict[int, list[tuple[str, float]]], n: int) -> list[tuple[list[str], list[float]]]:
    """Put the answers of windows together, by their sentences."""
    found: list[tuple[list[str], list[float]]] = [([], []) for _ in range(n)]
    for number, window in enumerate(read):
        tags, probabilities = found[window.sample]
        tags += [tag for tag, _ in of_windows[number]]
        probabilities += [p for _, p in of_windows[number]]
    return found
