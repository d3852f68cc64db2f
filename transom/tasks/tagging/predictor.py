"""Predicts the tags of words, and the entities that the tags mark."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal, NamedTuple
from xml.etree.ElementTree import Element

import torch

from transom.decoding.inference import ProgressCallback, eval_mode, ignore_progress, reject_single_item, unless_edited
from transom.decoding.predictors.encoder_predictor import EncoderPredictor
from transom.decoding.predictors.long_texts import check_long_text_policy
from transom.decoding.predictors.results import Record, Results
from transom.decoding.search.loop import log_probabilities
from transom.tasks.tagging.entities import Entity, EntityScores, entities_of, entity_scores, scheme_of
from transom.tasks.tagging.loader import inference_batches, split_sentences
from transom.tasks.tagging.model import TokenTagger
from transom.tasks.tagging.schema import TaggingInferenceConfig
from transom.tasks.tagging.tagged_files import TaggedSentences, Words, word_spans

LongSentencePolicy = Literal["window", "refuse"]
"""Treatment of a text longer than the context window. "window" splits the text between words into windows, "refuse" raises an error."""


@dataclass(frozen=True)
class EntitySpan(Record):
    """An entity in a text.

    Attributes:
        label: type of the entity, such as PER.
        text: the entity as written in the text.
        start: index of the entity's first character in the text.
        end: index after the entity's last character.
    """

    label: str
    text: str
    start: int
    end: int

    def __str__(self) -> str:
        """Return the entity as written in the text, and its label."""
        return f"{self.text} ({self.label})"


@dataclass(frozen=True)
class TaggedText(Record):
    """A text with the tags of its words.

    Attributes:
        words: words of the text.
        tags: most probable tag of each word.
        p: probability of each of these tags.
        entities: entities that the tags mark; empty if the tags of the model do not mark entities.
        windows: number of windows in which the model read the text.
    """

    words: list[str]
    tags: list[str]
    p: list[float]
    entities: list[EntitySpan]
    windows: int

    def __str__(self) -> str:
        """Return the words, each followed by its tag."""
        return " ".join(f"{word}/{tag}" for word, tag in zip(self.words, self.tags, strict=True))

    def elements(self) -> list[Element]:
        """Return the words as HTML elements for notebooks. Words with a tag other than O are highlighted."""
        from transom.inspection.pages.notebook import tagged

        rows = zip(self.words, self.tags, self.p, strict=True)
        return [tagged((word, None if tag == "O" else tag, f"{tag} {p:.1%}") for word, tag, p in rows)]


class TagScores(NamedTuple):
    """Accuracy of tags and F1 of entities.

    Attributes:
        accuracy: percentage of words with the correct tag.
        n: number of words.
        entities: entity scores, micro-averaged over all labels; None if the tags of the model do not mark entities.
        labels: entity scores of each label.
        n_too_long: number of sentences that the model read in several windows, because they are longer than the context window.
    """

    accuracy: float
    n: int
    entities: EntityScores | None
    labels: dict[str, EntityScores]
    n_too_long: int


class SentencePrediction(NamedTuple):
    """The predicted tags of a sentence.

    Attributes:
        tags: most probable tag of each word.
        p: probability of each of these tags.
        windows: number of windows in which the model read the sentence.
    """

    tags: list[str]
    p: list[float]
    windows: int


@dataclass(frozen=True, repr=False)
class Tagger(EncoderPredictor[TokenTagger]):
    """Predictor of the tags of words.

    The setting ``word_splitting`` of ``inference_config`` determines how texts are split into words.
    """

    inference_config: TaggingInferenceConfig = field(default_factory=TaggingInferenceConfig)

    def tag(
        self, texts: Sequence[str | Words], too_long: LongSentencePolicy = "window", notify: ProgressCallback = ignore_progress
    ) -> Results[TaggedText]:
        """Tag the words of texts.

        Args:
            texts: the texts, each as a string or as a list of words.
            too_long: treatment of a text longer than the context window. "window" splits the text into windows, "refuse" raises an error.
            notify: progress callback, called with the number of windows done and the total number of windows.

        Raises:
            ConfigError: ``too_long`` is invalid.
            DataError: ``texts`` is a single text, or a text is too long and ``too_long`` is "refuse".
        """
        reject_single_item(texts, "text")
        wholes = [text if isinstance(text, str) else " ".join(text) for text in texts]
        offsets = [_word_offsets(text, self.inference_config.word_splitting) for text in texts]
        sentences = [[whole[start:end] for start, end in of_text] for whole, of_text in zip(wholes, offsets, strict=True)]
        predicted = self.predict(sentences, too_long, notify)
        plain = scheme_of(self.model.config.classes) == "plain"
        return Results(
            TaggedText(words, tags, p, [] if plain else [_entity_span(whole, of_text, each) for each in entities_of(tags)], n)
            for whole, words, of_text, (tags, p, n) in zip(wholes, sentences, offsets, predicted, strict=True)
        )

    @torch.inference_mode()
    def predict(
        self, sentences: Sequence[Words], too_long: LongSentencePolicy = "window", notify: ProgressCallback = ignore_progress
    ) -> list[SentencePrediction]:
        """Predict the tags of sentences that are already split into words. The other arguments and the errors are those of ``tag``."""
        check_long_text_policy(too_long, "window", "refuse")
        read, classes = split_sentences(sentences, self.tokenizer, self.max_tokens), self.model.config.classes
        if too_long == "refuse":
            self.split_windows(list(map(" ".join, sentences)), too_long)
        of_windows = dict[int, list[tuple[str, float]]]()
        with eval_mode(self.model):
            for batch in inference_batches(read, None, self.inference_config.batch_tokens, self.tokenizer.special_tokens):
                batch = batch.to(self.model.device)
                log_p, labels = log_probabilities(unless_edited(self.encoder_backend, self.model)(batch)[batch.loss_mask]).max(-1)
                answers = iter(zip(labels.tolist(), log_p.exp().tolist(), strict=True))
                for number in batch.sample_ids:
                    of_windows[number] = [(classes[label], p) for label, p in islice(answers, len(read[number].first_tokens))]
                notify(len(of_windows), len(read))
        found = [SentencePrediction([], [], 0) for _ in sentences]
        for number, window in enumerate(read):
            tags, p, n = found[window.sample]
            words = of_windows[number]
            found[window.sample] = SentencePrediction(tags + [tag for tag, _ in words], p + [each for _, each in words], n + 1)
        return found

    def score(
        self, known: TaggedSentences, too_long: LongSentencePolicy = "window", notify: ProgressCallback = ignore_progress
    ) -> TagScores:
        """Predict the tags of tagged sentences, and compute the tag accuracy and the entity scores.

        Raises:
            ConfigError: ``too_long`` is invalid.
            DataError: a tag is unknown to the model, or a sentence is too long and ``too_long`` is "refuse".
        """
        known.encode_labels(classes := self.model.config.classes)
        predicted = self.predict(known.words, too_long, notify)
        found = [each.tags for each in predicted]
        right = sum(a == b for old, new in zip(known.tags, found, strict=True) for a, b in zip(old, new, strict=True))
        n = sum(map(len, found))
        total, per_label = (None, {}) if scheme_of(classes) == "plain" else entity_scores(known.tags, found)
        return TagScores(100 * right / n, n, total, per_label, sum(each.windows > 1 for each in predicted))


def _word_offsets(text: str | Words, split: str) -> list[tuple[int, int]]:
    """Return the start and end of each word in a text. A list of words stands for the text in which spaces join the words."""
    if isinstance(text, str):
        return word_spans(text, split)
    offsets, start = list[tuple[int, int]](), 0
    for word in text:
        offsets.append((start, start + len(word)))
        start += len(word) + 1
    return offsets


def _entity_span(text: str, offsets: Sequence[tuple[int, int]], entity: Entity) -> EntitySpan:
    start, end = offsets[entity.start][0], offsets[entity.end - 1][1]
    return EntitySpan(entity.label, text[start:end], start, end)
