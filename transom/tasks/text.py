"""What the tasks on text share: the data of a run with their tokenizers; and plain text as documents and streams of tokens."""

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
    """Training batches whose samples have a place in the data."""

    def place(self, sample: int) -> str:
        """Name a sample by its place, for people."""
        ...


@dataclass(frozen=True)
class TextTask(Generic[RecipeT, LoaderT, ValidT]):
    """Data of a task on text, ready to be learnt from.

    Attributes:
        recipe: as resolved; what only the data tell, such as vocabulary sizes, is filled in.
        tokenizers: of both sides; of one text, twice the same.
        loader: training batches.
        valid: validation data.
        valid_batches: the same as batches.
        report: what is known of the data.
        data: hash of all training and validation data, in their order.
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
        """The tokenizer of the source, or of the one text."""
        return self.tokenizers.source

    def write(self, folder: RunFolder) -> None:
        """Leave in the run folder what answering needs beside the model."""
        folder.write(TOKENIZER, self.tokenizers.to_bytes())

    def place(self, sample: int) -> str:
        """Name a training sample by its place in the data."""
        return self.loader.place(sample)

    def objective(self, model: Network) -> Objective:
        """Return the loss that a model is learned from."""
        return CrossEntropy(self.recipe.training.label_smoothing)


@dataclass(frozen=True)
class Text:
    """The text of a run.

    Attributes:
        splits: its documents.
        tokenizer: of all of them.
        streams: the same as tokens, by the split's name.
        windows: training batches of it.
    """

    splits: Splits[Documents]
    tokenizer: Tokenizer
    streams: dict[str, Stream]
    windows: WindowLoader

    @property
    def fingerprint(self) -> str:
        """Hash training and validation text in their order, so that a run can tell whether its data are still the same."""
        total = blake2b(digest_size=16)
        for documents in (self.splits.train, self.splits.valid):
            for text in documents.texts:
                total.update(text.encode() + b"\0")
            total.update(b"\1")
        return total.hexdigest()


def read_text(recipe: TextRecipe, data: TextData, reader: Reader, token_dropout: float = 0.0) -> Text:
    """Read a recipe's text, make its tokenizer or load that of another run, and cut training windows.

    Args:
        recipe: what to train.
        data: its data.
        reader: who reads.
        token_dropout: share of the training tokens that are blanked.

    Raises:
        TransomError: the text cannot be read, or does not suit the tokenizer.
    """
    reader.tell("reading the text")
    splits = load_text(data, reader.base)
    tokenizer = tokenizer_of(splits.train.texts, recipe, reader)
    reader.tell("reading the text as tokens")
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
    """Learn the symbols of training texts; ``tell`` is told how many they are."""
    tell(f"learning symbols from {len(texts):,} texts ...")
    of_text = Tokenizer.train(texts, tokenizer)
    return Tokenizers(of_text, of_text)
