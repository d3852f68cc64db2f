"""Base class of text tasks, and tokenized plain text as documents and token streams."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

from transom.checkpoints.run_files import TOKENIZER
from transom.checkpoints.run_folder import RunFolder
from transom.config.data import TextData
from transom.config.data import Tokenizer as TokenizerConfig
from transom.config.recipe import Recipe, TextRecipe
from transom.data.reports.report import Report
from transom.data.split import Splits
from transom.data.text.documents import Documents, load_text
from transom.data.text.windows import Stream, WindowLoader
from transom.data.tokenizer.tokenizer import Tokenizer, Tokenizers
from transom.models.network import Network
from transom.training.objectives.objective import CrossEntropy, Objective
from transom.training.start import tokenizer_of
from transom.training.task import Batches, Reader

RecipeT = TypeVar("RecipeT", bound=Recipe)
LoaderT = TypeVar("LoaderT", bound="PlacedBatches")
ValidT = TypeVar("ValidT")


@runtime_checkable
class PlacedBatches(Batches, Protocol):
    """Training batches whose samples can be located in the data."""

    def place(self, sample: int) -> str:
        """Describe a sample by its location in the data, for messages."""
        ...


@dataclass(frozen=True)
class TextTask(Generic[RecipeT, LoaderT, ValidT]):
    """Base class of text tasks: tokenized training and validation data.

    Attributes:
        recipe: the resolved recipe, with fields that depend on the data, such as vocabulary sizes, filled in.
        tokenizers: tokenizers of source and target; the same one twice for a single text.
        loader: training batches.
        valid: validation data.
        valid_batches: the validation data in batches.
        report: the data report.
        data: hash of all training and validation data, in order.
    """

    recipe: RecipeT
    tokenizers: Tokenizers
    loader: LoaderT
    valid: ValidT
    valid_batches: Any
    report: Report
    data: str

    VERBS: ClassVar[Mapping[str, Callable[[Any], Any]]] = {}

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the source or of the single text."""
        return self.tokenizers.source

    def write(self, folder: RunFolder) -> None:
        """Save the tokenizers in the run folder."""
        folder.write(TOKENIZER, self.tokenizers.to_bytes())

    def place(self, sample: int) -> str:
        """Describe a training sample by its location in the data."""
        return self.loader.place(sample)

    def objective(self, model: Network) -> Objective:
        """Return the training loss of the task."""
        return CrossEntropy(self.recipe.training.label_smoothing)


@dataclass(frozen=True)
class Text:
    """The tokenized text of a run.

    Attributes:
        splits: the documents.
        tokenizer: the tokenizer of all documents.
        streams: token stream of each split, by its name.
        windows: training batches.
    """

    splits: Splits[Documents]
    tokenizer: Tokenizer
    streams: dict[str, Stream]
    windows: WindowLoader

    @property
    def fingerprint(self) -> str:
        """Hash of training and validation text in order, by which a resumed run detects changed data."""
        total = blake2b(digest_size=16)
        for documents in (self.splits.train, self.splits.valid):
            for text in documents.texts:
                total.update(text.encode() + b"\0")
            total.update(b"\1")
        return total.hexdigest()


def read_text(recipe: TextRecipe, data: TextData, reader: Reader, token_dropout: float = 0.0) -> Text:
    """Read the text of a recipe, train its tokenizer or load that of another run, and build training windows.

    Args:
        recipe: the recipe to train.
        data: data section of the recipe.
        reader: the context in which the data are read.
        token_dropout: mean fraction of the training tokens replaced by [UNK].

    Raises:
        TransomError: the text cannot be read or does not fit the tokenizer.
    """
    reader.tell("reading the text")
    splits = load_text(data, reader.base)
    tokenizer = tokenizer_of(splits.train.texts, recipe, reader)
    reader.tell("tokenizing the text")
    streams, training = {name: Stream(part, tokenizer) for name, part in splits.parts.items()}, recipe.training
    windows = WindowLoader(
        streams["train"],
        max_seq_len=recipe.model.max_seq_len,
        batch_tokens=training.batch_tokens,
        seed=training.seed,
        token_dropout=token_dropout,
        slicing=reader.slicing(training),
    )
    return Text(splits, tokenizer, streams, windows)


def train_text_tokenizers(texts: Sequence[str], tokenizer: TokenizerConfig, tell: Callable[[str], None]) -> Tokenizers:
    """Train a tokenizer on training texts; call ``tell`` with a line of progress."""
    tell(f"training the tokenizer on {len(texts):,} texts ...")
    of_text = Tokenizer.train(texts, tokenizer)
    return Tokenizers(of_text, of_text)
