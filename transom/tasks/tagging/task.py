"""The tagging task, which predicts the tag of each word of a sentence, such as its part of speech or its position in an entity."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import torch

from transom.config.data import PhrasebookConfig
from transom.data.labeled.class_labels import reject_long_names
from transom.data.labeled.labeled_texts import VALID_FRACTION
from transom.data.reports.baseline import class_baseline
from transom.data.split import Splits, holdout, read_splits
from transom.data.synthetic.phrasebook.generate import generate_phrasebook
from transom.data.text.input_profile import InputProfile
from transom.data.text.text_io import expand_path
from transom.data.tokenizer.tokenizer import Tokenizers
from transom.errors import ConfigError, DataError
from transom.files.limits import MAX_CLASSES
from transom.inspection.messages.tables import message
from transom.inspection.pages.page import Section
from transom.models.base import Network
from transom.planning.flops import count_flops
from transom.planning.precision import Precision
from transom.tasks.embed_command import as_embedder
from transom.tasks.tagging.entities import complete_tags, scheme_of
from transom.tasks.tagging.loader import TaggedBatch, TaggedLoader, inference_batches, split_sentences, window_labels
from transom.tasks.tagging.model import TokenTagger
from transom.tasks.tagging.phrasebook import tagged_words
from transom.tasks.tagging.predictor import Tagger
from transom.tasks.tagging.report import render_tagged_sentences, report_tagged
from transom.tasks.tagging.schema import TaggedFilesConfig, TaggingInferenceConfig, TaggingRecipe
from transom.tasks.tagging.tagged_files import TaggedSentences, fingerprint, read_tagged
from transom.tasks.task import LoadedRun
from transom.tasks.text import TextTask, train_text_tokenizers, vocabulary_fields
from transom.training.finetune import load_or_train_tokenizer
from transom.training.objectives.objective import Objective
from transom.training.objectives.r_drop import choose_text_loss
from transom.training.task_protocol import ScoredPredictions, TaskContext
from transom.training.validation import different_samples, validation_loss


class TaggingTask(TextTask[TaggingRecipe, TaggedLoader, TaggedSentences]):
    """The tagging task, with tokenized sentences and the tags of their words."""

    PREDICTOR: ClassVar[type] = Tagger
    COMMANDS: ClassVar[Mapping[str, Callable[[Any], Any]]] = {"embed": as_embedder}
    report_sections: ClassVar[Sequence[Section]] = (Section("tags", message("sections.tags"), render_tagged_sentences),)

    @classmethod
    def load(cls, recipe: TaggingRecipe, base: Path) -> Splits[TaggedSentences]:
        """Read or generate the tagged sentences of a recipe.

        Raises:
            DataError: a file cannot be read, or there are too few sentences to split.
        """
        data, root = recipe.data, base / expand_path(recipe.data.root)
        if isinstance(data.generate, PhrasebookConfig):
            parts = generate_phrasebook(data.generate).parts.values()
            return Splits(*(TaggedSentences.from_pairs(map(tagged_words, part.source), part.name) for part in parts))

        def read(files: TaggedFilesConfig) -> TaggedSentences:
            return read_tagged(root / expand_path(files.file), files.word_column, files.tag_column)

        return read_splits(data, read, lambda tagged: holdout(tagged, tagged.texts, VALID_FRACTION, "sentences"))

    @classmethod
    def read(cls, recipe: TaggingRecipe, context: TaskContext) -> Self:
        """Read the sentences, train or load the tokenizer, and build the data report.

        Raises:
            TransomError: the sentences cannot be read or do not fit the recipe.
        """
        context.notify("reading the sentences")
        splits = cls.load(recipe, context.base)
        classes = recipe.model.classes or _classes_of(splits, recipe)
        if recipe.training.best_checkpoint_metric == "f1" and scheme_of(classes) == "plain":
            raise ConfigError(
                f"training.best_checkpoint_metric: expected entity tags B-LABEL, I-LABEL and O for 'f1',"
                f" found tags such as {classes[0]!r}; set it to 'accuracy'"
            )
        tokenizer = load_or_train_tokenizer(splits.train.texts, recipe, context)
        recipe = recipe.with_fields("model", **vocabulary_fields(tokenizer), classes=classes)
        training, max_seq_len, valid = recipe.training, recipe.model.max_seq_len, splits.valid
        loader = TaggedLoader(
            splits.train,
            tokenizer,
            classes,
            max_seq_len=max_seq_len,
            batch_tokens=training.batch_tokens,
            seed=training.seed,
            blank_noising=training.blank_noising,
            micro_batching=context.micro_batching(training),
        )
        max_tokens = max_seq_len - tokenizer.special_tokens.n_added
        read = split_sentences(valid.words, tokenizer, max_tokens)
        labels = [label for of_sentence in valid.encode_labels(classes) for label in of_sentence]
        baseline = class_baseline([label for of_sentence in splits.train.encode_labels(classes) for label in of_sentence], labels, classes)
        return cls(
            recipe=recipe,
            tokenizers=Tokenizers(tokenizer),
            loader=loader,
            valid=valid,
            valid_batches=inference_batches(
                read, window_labels(read, valid.encode_labels(classes)), training.batch_tokens, tokenizer.special_tokens
            ),
            report=report_tagged(splits, classes, tokenizer, loader, max_tokens).with_baseline(baseline),
            data_hash=fingerprint(splits.train, valid),
            input_profile=InputProfile.from_texts(splits.train.texts, valid.texts),
        )

    def objective(self, model: Network) -> Objective:
        """Return the training loss that the recipe chooses, which is cross-entropy or R-Drop."""
        return choose_text_loss(self.recipe.training)

    def flops(self, batch: TaggedBatch) -> float:
        """Return the FLOPs of the forward and backward pass of a training step on a batch, padding included."""
        rows, length = batch.source.tokens.shape
        inside = count_flops(self.recipe.model, rows, length, 0)
        return inside.training + count_flops(self.recipe.model, 1, 0, batch.n_target_tokens).training

    def evaluate(self, model: Network, autocast: torch.autocast) -> dict[str, float]:
        """Return the validation loss and the tag accuracy, and the micro-averaged entity F1 if the tags mark entities."""
        figures = validation_loss(model, self.valid_batches, autocast)
        del figures["perplexity"]  # perplexity is not meaningful for tags
        with autocast:
            scores = self._tagger(model).score(self.valid)
        f1 = {} if scores.entities is None else {"f1": 100 * scores.entities.f1}
        return figures | {"accuracy": scores.accuracy} | f1

    def predict_validation(self, model: Network, autocast: torch.autocast, precision: Precision) -> ScoredPredictions:
        """Predict the tags of a few validation sentences."""
        shown = self.valid.select(different_samples(self.valid.texts, self.recipe.training.validate_samples), self.valid.name)
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
        assert isinstance(run.model, TokenTagger)
        return Tagger(run.model, run.tokenizer, run.decoding or TaggingInferenceConfig(), run.precision, run.encoder_backend, run.origin)

    @classmethod
    def train_tokenizers(cls, recipe: TaggingRecipe, base: Path, notify: Callable[[str], None]) -> Tokenizers:
        """Train the tokenizers of a recipe on its training data."""
        return train_text_tokenizers(cls.load(recipe, base).train.texts, recipe, base, notify)


def _classes_of(splits: Splits[TaggedSentences], recipe: TaggingRecipe) -> tuple[str, ...]:
    """Return all tags of the tagging scheme for the labels in the training sentences, sorted.

    Sentences that were split off from the training sentences for validation count as training sentences.

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
    reject_long_names(classes, splits.train.name, "tags")
    return classes
