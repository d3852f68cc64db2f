"""Tagging as a task: each word of a sentence is to get its tag, such as a part of speech or a part of an entity's name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self
from xml.etree.ElementTree import Element

import torch

from transom.checkpoints.run_files import TOKENIZER
from transom.checkpoints.run_folder import RunFolder
from transom.config.data import Phrasebook
from transom.data.labeled.entities import OUTSIDE, closed, scheme_of
from transom.data.labeled.labelled import VALID_SHARE
from transom.data.labeled.tagged import Tagged, TaggedBatch, TaggedLoader, fingerprint, labels_of, read_tagged, reading_batches, windows
from transom.data.reports.report import Report
from transom.data.reports.tagged import report_tagged
from transom.data.split import Splits, read_splits, split_off
from transom.data.synthetic.phrasebook.generate import generate
from transom.data.synthetic.phrasebook.tags import tagged_words
from transom.data.text.text import expanded
from transom.data.tokenizer.tokenizer import Tokenizer, Tokenizers
from transom.decoding.backends.searcher import reader_of
from transom.decoding.predictors.tagger import Tagger
from transom.errors import ConfigError, DataError
from transom.files.limits import MAX_CLASSES
from transom.inspection.facts import Facts
from transom.inspection.markup import node
from transom.inspection.page import Section
from transom.models.encoder import TokenTaggerTransformer
from transom.models.network import Network
from transom.planning.flops import count_flops
from transom.planning.precision import Precision
from transom.tasks.encoders import embedder_of
from transom.tasks.tagging.schema import TaggedFiles, TaggingRecipe, TagReading
from transom.tasks.task import LoadedRun
from transom.tasks.text import train_text_tokenizers
from transom.training.objectives.objective import Objective
from transom.training.objectives.r_drop import text_objective
from transom.training.start import tokenizer_of
from transom.training.task import Answers, Reader
from transom.training.validation import validation_loss


def tagged_sentences(facts: Facts) -> list[Element]:
    """Show validation sentences with the tags that the kept weights found, and where these differ the expected ones."""
    shown = [sample for sample in facts.samples if "tagged" in sample]
    note = "Validation sentences with the tags that the kept weights found; where another was expected, it follows."
    return [node("p", note, class_="soft"), *(node("div", *_tagged(sample), class_="sample") for sample in shown)] if shown else []


def _tagged(sample: Mapping[str, str]) -> list[Element | str]:
    pieces, columns = list[Element | str](), (sample[name].split("\n") for name in ("words", "expected", "tagged"))
    for word, expected, found in zip(*columns, strict=True):
        if found == expected == OUTSIDE:
            pieces.append(f"{word} ")
            continue
        told = node("span", found, class_="soft") if found == expected else node("span", f"{found}, not {expected}")
        pieces += [node("mark", word), " ", told, " "]
    return pieces


@dataclass(frozen=True)
class TaggingTask:
    """Sentences with their tags, ready to be learnt from.

    Attributes:
        recipe: as resolved, vocabulary size and tags filled in.
        tokenizer: of the words.
        loader: training batches.
        valid: validation sentences.
        valid_batches: the same as batches.
        report: what is known of the sentences.
        data: hash of all training and validation words and tags, in their order.
    """

    recipe: TaggingRecipe
    tokenizer: Tokenizer
    loader: TaggedLoader
    valid: Tagged
    valid_batches: Sequence[TaggedBatch]
    report: Report
    data: str

    PREDICTOR: ClassVar[type] = Tagger
    VERBS: ClassVar[Mapping[str, Callable[[Any], Any]]] = {"embed": embedder_of}
    report_sections: ClassVar[Sequence[Section]] = (Section("tags", "Tags", tagged_sentences),)

    @classmethod
    def load(cls, recipe: TaggingRecipe, base: Path) -> Splits[Tagged]:
        """Read or generate the sentences.

        Raises:
            DataError: a file cannot be read, or there is too little to split.
        """
        data, root = recipe.data, base / expanded(recipe.data.root)
        if isinstance(data.generate, Phrasebook):
            parts = generate(data.generate).parts.values()
            return Splits(*(Tagged.together(map(tagged_words, part.source), part.name) for part in parts))

        def read(files: TaggedFiles) -> Tagged:
            return read_tagged(root / expanded(files.file), files.word_column, files.tag_column)

        return read_splits(data, read, lambda tagged: split_off(tagged, tagged.texts, VALID_SHARE, "sentences"))

    @classmethod
    def read(cls, recipe: TaggingRecipe, reader: Reader) -> Self:
        """Read the sentences, make or load the tokenizer, and examine all of it.

        Raises:
            TransomError: the sentences cannot be read, or do not fit the recipe.
        """
        reader.tell("reading the sentences")
        splits = cls.load(recipe, reader.base)
        classes = recipe.model.classes or _classes_of(splits, recipe)
        if recipe.training.select_by == "f1" and scheme_of(classes) == "plain":
            raise ConfigError(
                f"training.select_by: 'f1' is of entities, whose tags are B-LABEL, I-LABEL and O, found tags such as {classes[0]!r}; take"
                " 'accuracy'"
            )
        tokenizer = tokenizer_of(splits.train.texts, recipe, reader)
        recipe = recipe.with_fields("model", vocab_size=tokenizer.vocab_size, classes=classes)
        training, max_seq_len = recipe.training, recipe.model.max_seq_len
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
        valid, most = splits.valid, max_seq_len - 1
        read = windows(valid.words, tokenizer, most)
        return cls(
            recipe=recipe,
            tokenizer=tokenizer,
            loader=loader,
            valid=valid,
            valid_batches=reading_batches(read, labels_of(read, valid.numbered(classes)), training.batch_tokens),
            report=report_tagged(splits, classes, tokenizer, loader, most),
            data=fingerprint(splits.train, valid),
        )

    def write(self, folder: RunFolder) -> None:
        """Leave in the run folder what tagging needs beside the model."""
        folder.write(TOKENIZER, Tokenizers(self.tokenizer).to_bytes())

    def place(self, sample: int) -> str:
        """Name a training sentence by its place."""
        return self.loader.place(sample)

    def objective(self, model: Network) -> Objective:
        """Return the loss that a model is learned from."""
        return text_objective(self.recipe.training)

    def flops(self, batch: TaggedBatch) -> float:
        """Count the floating-point operations of learning from a batch, forward and backward, padding included."""
        rows, length = batch.source.tokens.shape
        inside = count_flops(self.recipe.model, rows, length, 0)
        return inside.training + count_flops(self.recipe.model, 1, 0, batch.n_target_tokens).training

    def measure(self, model: Network, autocast: torch.autocast) -> dict[str, float]:
        """Measure a model on the validation sentences: of words the loss and accuracy, of entities the micro-averaged F1."""
        figures = validation_loss(model, self.valid_batches, autocast)
        del figures["perplexity"]  # of tags it says nothing
        with autocast:
            scores = self._tagger(model).score(self.valid)
        f1 = {} if scores.entities is None else {"f1": 100 * scores.entities.f1}
        return figures | {"accuracy": scores.accuracy} | f1

    def answer(self, model: Network, autocast: torch.autocast, precision: Precision) -> Answers:
        """Return a few validation sentences with the tags that a model finds."""
        shown = self.valid.take(list(range(min(len(self.valid), self.recipe.training.validate_samples))), self.valid.name)
        with autocast:
            answers = self._tagger(model).tags(shown.words)
        rows = zip(shown.words, shown.tags, answers, strict=True)
        of_each = ({"words": words, "expected": tags, "tagged": found} for words, tags, (found, _) in rows)
        return {}, tuple({name: "\n".join(column) for name, column in sample.items()} for sample in of_each)  # no word has a line's end

    def _tagger(self, model: Network) -> Tagger:
        assert isinstance(model, TokenTaggerTransformer)
        return Tagger(model, self.tokenizer, self.recipe.decoding)

    @classmethod
    def predictor(cls, run: LoadedRun) -> Tagger:
        """Return what answers with a run's model."""
        assert isinstance(run.model, TokenTaggerTransformer)
        reading = run.decoding or TagReading()
        return Tagger(run.model, run.tokenizer, reading, run.precision, reader_of(run.model), reading.words)

    @classmethod
    def train_tokenizers(cls, recipe: TaggingRecipe, base: Path, tell: Callable[[str], None]) -> Tokenizers:
        """Learn the symbols of a recipe's training data."""
        return train_text_tokenizers(cls.load(recipe, base).train.texts, recipe.tokenizer, tell)


def _classes_of(splits: Splits[Tagged], recipe: TaggingRecipe) -> tuple[str, ...]:
    """Return the tags of training sentences, those split off of them included, in their order as text.

    Raises:
        DataError: there is one only, or so many that they are something else.
    """
    parts = [splits.train, *([splits.valid] if recipe.data.valid is None else [])]
    used = {tag for part in parts for tags in part.tags for tag in tags}
    classes = closed(used, scheme_of(used))
    if not 2 <= len(classes) <= MAX_CLASSES:
        raise DataError(
            f"{splits.train.name}: expected 2 to {MAX_CLASSES:,} tags, found {len(classes):,} ({classes[0][:50]!r}); is that the column of"
            " tags?"
        )
    return classes
