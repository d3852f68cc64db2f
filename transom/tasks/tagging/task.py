"""Tagging task: predict the tag of each word of a sentence, such as its part of speech or its position in an entity."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import torch

from transom.config.data import Phrasebook
from transom.data.labeled.classes import refuse_long_names
from transom.data.labeled.labelled import VALID_SHARE
from transom.data.split import Splits, read_splits, split_off
from transom.data.synthetic.phrasebook.generate import generate
from transom.data.text.text import expanded
from transom.data.tokenizer.tokenizer import Tokenizers
from transom.decoding.backends.searcher import reader_of
from transom.errors import ConfigError, DataError
from transom.files.limits import MAX_CLASSES
from transom.inspection.page import Section
from transom.models.network import Network
from transom.planning.flops import count_flops
from transom.planning.precision import Precision
from transom.tasks.encoders import embedder_of
from transom.tasks.tagging.entities import complete_tags, scheme_of
from transom.tasks.tagging.loader import TaggedBatch, TaggedLoader, inference_batches, labels_of, windows
from transom.tasks.tagging.model import TokenTagger
from transom.tasks.tagging.phrasebook import tagged_words
from transom.tasks.tagging.predictor import Tagger
from transom.tasks.tagging.report import report_tagged, tagged_sentences
from transom.tasks.tagging.schema import TaggedFiles, TaggingRecipe, TagReading
from transom.tasks.tagging.tagged_files import Tagged, fingerprint, read_tagged
from transom.tasks.task import LoadedRun
from transom.tasks.text import TextTask, train_text_tokenizers
from transom.training.objectives.objective import Objective
from transom.training.objectives.r_drop import text_objective
from transom.training.start import tokenizer_of
from transom.training.task import Answers, Reader
from transom.training.validation import validation_loss


class TaggingTask(TextTask[TaggingRecipe, TaggedLoader, Tagged]):
    """Tagging: tokenized sentences with their tags."""

    PREDICTOR: ClassVar[type] = Tagger
    VERBS: ClassVar[Mapping[str, Callable[[Any], Any]]] = {"embed": embedder_of}
    report_sections: ClassVar[Sequence[Section]] = (Section("tags", "Tags", tagged_sentences),)

    @classmethod
    def load(cls, recipe: TaggingRecipe, base: Path) -> Splits[Tagged]:
        """Read or generate the sentences.

        Raises:
            DataError: a file cannot be read, or there are too few sentences to split.
        """
        data, root = recipe.data, base / expanded(recipe.data.root)
        if isinstance(data.generate, Phrasebook):
            parts = generate(data.generate).parts.values()
            return Splits(*(Tagged.from_pairs(map(tagged_words, part.source), part.name) for part in parts))

        def read(files: TaggedFiles) -> Tagged:
            return read_tagged(root / expanded(files.file), files.word_column, files.tag_column)

        return read_splits(data, read, lambda tagged: split_off(tagged, tagged.texts, VALID_SHARE, "sentences"))

    @classmethod
    def read(cls, recipe: TaggingRecipe, reader: Reader) -> Self:
        """Read the sentences, train or load the tokenizer, and build the data report.

        Raises:
            TransomError: the sentences cannot be read or do not fit the recipe.
        """
        reader.tell("reading the sentences")
        splits = cls.load(recipe, reader.base)
        classes = recipe.model.classes or _classes_of(splits, recipe)
        if recipe.training.select_by == "f1" and scheme_of(classes) == "plain":
            raise ConfigError(
                f"training.select_by: expected entity tags B-LABEL, I-LABEL and O for 'f1',"
                f" found tags such as {classes[0]!r}; set it to 'accuracy'"
            )
        tokenizer = tokenizer_of(splits.train.texts, recipe, reader)
        recipe = recipe.with_fields("model", vocab_size=tokenizer.vocab_size, classes=classes)
        training, max_seq_len, valid = recipe.training, recipe.model.max_seq_len, splits.valid
        loader = TaggedLoader(
            splits.train,
            tokenizer,
            classes,
            max_seq_len=max_seq_len,
            batch_tokens=training.batch_tokens,
            seed=training.seed,
            token_dropout=training.token_dropout,
            slicing=reader.slicing(training),
        )
        read = windows(valid.words, tokenizer, max_seq_len - 1)
        return cls(
            recipe=recipe,
            tokenizers=Tokenizers(tokenizer),
            loader=loader,
            valid=valid,
            valid_batches=inference_batches(read, labels_of(read, valid.numbered(classes)), training.batch_tokens),
            report=report_tagged(splits, classes, tokenizer, loader, max_seq_len - 1),
            data=fingerprint(splits.train, valid),
        )

    def objective(self, model: Network) -> Objective:
        """Return the training loss of the task."""
        return text_objective(self.recipe.training)

    def flops(self, batch: TaggedBatch) -> float:
        """Return the FLOPs of a training step on a batch: forward and backward pass, padding included."""
        rows, length = batch.source.tokens.shape
        inside = count_flops(self.recipe.model, rows, length, 0)
        return inside.training + count_flops(self.recipe.model, 1, 0, batch.n_target_tokens).training

    def measure(self, model: Network, autocast: torch.autocast) -> dict[str, float]:
        """Return validation loss, tag accuracy and micro-averaged entity F1."""
        figures = validation_loss(model, self.valid_batches, autocast)
        del figures["perplexity"]  # perplexity is not meaningful for tags
        with autocast:
            scores = self._tagger(model).score(self.valid)
        f1 = {} if scores.entities is None else {"f1": 100 * scores.entities.f1}
        return figures | {"accuracy": scores.accuracy} | f1

    def answer(self, model: Network, autocast: torch.autocast, precision: Precision) -> Answers:
        """Predict the tags of a few validation sentences."""
        shown = self.valid.take(list(range(min(len(self.valid), self.recipe.training.validate_samples))), self.valid.name)
        with autocast:
            predicted = self._tagger(model).predict(shown.words)
        rows = zip(shown.words, shown.tags, predicted, strict=True)
        samples = ({"words": words, "expected": tags, "tagged": found.tags} for words, tags, found in rows)
        return {}, tuple({name: "\n".join(column) for name, column in sample.items()} for sample in samples)  # no word has a line break

    def _tagger(self, model: Network) -> Tagger:
        assert isinstance(model, TokenTagger)
        return Tagger(model, self.tokenizer, self.recipe.decoding)

    @classmethod
    def predictor(cls, run: LoadedRun) -> Tagger:
        """Return the predictor of a run."""
        assert isinstance(run.model, TokenTagger)
        return Tagger(run.model, run.tokenizer, run.decoding or TagReading(), run.precision, reader_of(run.model), run.origin)

    @classmethod
    def train_tokenizers(cls, recipe: TaggingRecipe, base: Path, tell: Callable[[str], None]) -> Tokenizers:
        """Train the tokenizers of a recipe on its training data."""
        return train_text_tokenizers(cls.load(recipe, base).train.texts, recipe.tokenizer, tell)


def _classes_of(splits: Splits[Tagged], recipe: TaggingRecipe) -> tuple[str, ...]:
    """Return the tags of the training sentences, those split off for validation included, sorted.

    Raises:
        DataError: there is only one tag, or more than ``MAX_CLASSES``.
    """
    parts = [splits.train, *([splits.valid] if recipe.data.valid is None else [])]
    used = {tag for part in parts for tags in part.tags for tag in tags}
    classes = complete_tags(used, scheme_of(used))
    if not 2 <= len(classes) <= MAX_CLASSES:
        raise DataError(
            f"{splits.train.name}: expected 2 to {MAX_CLASSES:,} tags, found {len(classes):,} ({classes[0][:50]!r}); check tag_column"
        )
    refuse_long_names(classes, splits.train.name, "tags")
    return classes
