"""Plain text made ready for the tasks that learn from it: documents, tokenizer, streams of tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from transom.config.data import TextData
from transom.config.data import Tokenizer as TokenizerConfig
from transom.config.recipe import TextRecipe
from transom.data.split import Splits
from transom.data.text.documents import Documents, load_text
from transom.data.text.windows import Stream, WindowLoader
from transom.data.tokenizer.tokenizer import Tokenizer, Tokenizers
from transom.training.start import tokenizer_of
from transom.training.task import Reader


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
