"""The base class of text tasks, and functions that load and tokenize plain text."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np

from transom.checkpoints.run_files import INPUT_PROFILE, TOKENIZER
from transom.checkpoints.run_folder import RunFolder
from transom.config.data import TextDataConfig
from transom.config.recipe import Recipe, TextRecipe
from transom.data.batch import Batch
from transom.data.reports.baseline import frequency_baseline, validation_labels
from transom.data.reports.report import DataReport
from transom.data.reports.text import report_text
from transom.data.split import Splits
from transom.data.text.documents import Documents, load_text
from transom.data.text.input_profile import InputProfile
from transom.data.text.windows import TokenStream, WindowLoader
from transom.data.tokenizer.tokenizer import Tokenizer, Tokenizers
from transom.files.atomic_io import FORMAT_VERSION, json_bytes
from transom.models.base import Network
from transom.training.finetune import data_root, load_or_train_tokenizer
from transom.training.objectives.objective import CrossEntropy, Objective
from transom.training.task_protocol import TaskContext, TrainLoader

RecipeT = TypeVar("RecipeT", bound=Recipe)
LoaderT = TypeVar("LoaderT", bound="DescribedBatches")
ValidT = TypeVar("ValidT")


@runtime_checkable
class DescribedBatches(TrainLoader, Protocol):
    """Loader of training batches that can describe the location of each sample in the data."""

    def describe_sample(self, sample: int) -> str:
        """Describe the location of a sample in the data, such as its file and line, for messages."""
        ...


@dataclass(frozen=True)
class TextTask(Generic[RecipeT, LoaderT, ValidT]):
    """Base class of text tasks, which holds tokenized training and validation data.

    Attributes:
        recipe: the resolved recipe, with fields that depend on the data, such as vocabulary sizes, filled in.
        tokenizers: tokenizers of the source and target texts; the same tokenizer twice for tasks on single texts.
        loader: loader of the training batches.
        valid: validation data.
        valid_batches: the validation data in batches.
        report: the data report.
        data_hash: hash of all training and validation data, in order.
        input_profile: profile of the words and lengths of the training inputs, by which unusual inputs are detected at inference.
    """

    recipe: RecipeT
    tokenizers: Tokenizers
    loader: LoaderT
    valid: ValidT
    valid_batches: Any
    report: DataReport
    data_hash: str
    input_profile: InputProfile

    COMMANDS: ClassVar[Mapping[str, Callable[[Any], Any]]] = {}

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the inputs, which are the source texts in tasks on text pairs."""
        return self.tokenizers.source

    def write(self, folder: RunFolder) -> None:
        """Save the tokenizers and the input profile in the run folder."""
        folder.write(TOKENIZER, self.tokenizers.to_bytes())
        if not folder.checkpoints.steps():  # a resumed run already has a profile, unless an earlier version started the run
            folder.write(INPUT_PROFILE, json_bytes({"format_version": FORMAT_VERSION, **self.input_profile.to_json()}))

    def describe_sample(self, sample: int) -> str:
        """Describe the location of a training sample in the data, for messages."""
        return self.loader.describe_sample(sample)

    def objective(self, model: Network) -> Objective:
        """Return the training loss of the task, which is cross-entropy with label smoothing."""
        return CrossEntropy(self.recipe.training.label_smoothing)


@dataclass(frozen=True)
class TokenizedText:
    """The tokenized text of a run.

    Attributes:
        recipe: the recipe, fitted to the amount of text.
        splits: the documents of each split.
        tokenizer: the tokenizer of the documents.
        streams: token stream of each split, by name of the split.
        windows: loader of the training batches, which consist of windows of the text.
    """

    recipe: Any
    splits: Splits[Documents]
    tokenizer: Tokenizer
    streams: dict[str, TokenStream]
    windows: WindowLoader

    @property
    def fingerprint(self) -> str:
        """Hash of all training and validation documents in order, by which a resumed run detects changed data."""
        total = blake2b(digest_size=16)
        for documents in (self.splits.train, self.splits.valid):
            for text in documents.texts:
                total.update(text.encode() + b"\0")
            total.update(b"\1")
        return total.hexdigest()

    def report(self, valid_batches: Sequence[Batch]) -> DataReport:
        """Return the data report, with the validation loss of a baseline.

        The baseline predicts every validation token from the token frequencies of the training text.
        """
        counts = np.bincount(self.streams["train"].tokens, minlength=self.tokenizer.vocab_size)
        report = report_text(self.splits, self.streams, self.tokenizer, self.windows)
        return report.with_baseline(frequency_baseline(counts, validation_labels(valid_batches), "token"))


def load_tokenized_text(recipe: TextRecipe, data: TextDataConfig, context: TaskContext, blank_noising: float = 0.0) -> TokenizedText:
    """Read the text of a recipe, prepare its tokenizer, tokenize the text, and build the loader of training windows.

    The tokenizer of a resumed run, or of the original run in fine-tuning, is loaded. Otherwise, a tokenizer is trained on the training
    documents.

    Args:
        recipe: the recipe to train.
        data: data section of the recipe.
        context: folders, progress callback and rank of the training run.
        blank_noising: mean fraction of the training tokens replaced by the blank token.

    Raises:
        TransomError: the text cannot be read or does not fit the tokenizer.
    """
    context.notify("reading the text")
    splits = load_text(data, context.base)
    recipe = context.fit(recipe, len(splits.train.texts), splits.train.texts)
    tokenizer = load_or_train_tokenizer(splits.train.texts, recipe, context)
    context.notify("tokenizing the text")
    streams, training = {name: TokenStream(part, tokenizer) for name, part in splits.parts.items()}, recipe.training
    windows = WindowLoader(
        streams["train"],
        max_seq_len=recipe.model.max_seq_len,
        batch_tokens=training.batch_tokens,
        seed=training.seed,
        blank_noising=blank_noising,
        micro_batching=context.micro_batching(training),
    )
    return TokenizedText(recipe, splits, tokenizer, streams, windows)


def vocabulary_fields(tokenizer: Tokenizer) -> dict[str, int | None]:
    """Return the fields of an encoder's configuration that the tokenizer decides: size of the vocabulary, and its mask token if any."""
    return {"vocab_size": tokenizer.vocab_size, "mask_token_id": tokenizer.special_tokens.mask_token_id}


def train_text_tokenizers(texts: Sequence[str], recipe: TextRecipe, base: Path, notify: Callable[[str], None]) -> Tokenizers:
    """Train one tokenizer on training texts, and return it as tokenizer of both source and target texts.

    Args:
        texts: the training texts.
        recipe: the recipe with the settings of the tokenizer.
        base: folder that a relative ``data.root`` is resolved against.
        notify: called with a line that states the number of texts, before the tokenizer is trained.
    """
    notify(f"training the tokenizer on {len(texts):,} texts ...")
    of_text = Tokenizer.train(texts, recipe.tokenizer, folder=data_root(recipe, base))
    return Tokenizers(of_text, of_text)
