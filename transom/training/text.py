"""Plain text made ready for the tasks that learn from it: documents, tokenizer, streams of tokens."""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from transom.config.recipe import LanguageRecipe, MaskedRecipe
from transom.inputs.documents import TextSplits, load_text
from transom.inputs.tokenizer import Tokenizer
from transom.inputs.windows import Stream, WindowLoader
from transom.training.start import given_tokenizers
from transom.weights.run_folder import RunFolder


@dataclass(frozen=True)
class Text:
    """The text of a run.

    Attributes:
        splits: its documents.
        tokenizer: of all of them.
        streams: the same as tokens, by the split's name.
        windows: training batches of it.
    """

    splits: TextSplits
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


def read_text(
    recipe: LanguageRecipe | MaskedRecipe, base: Path, folder: RunFolder, tell: Callable[[str], None], rank: int, n_ranks: int
) -> Text:
    """Read a recipe's text, make its tokenizer or load that of another run, and cut training windows.

    Args:
        recipe: what to train.
        base: folder that ``data.root`` is relative to.
        folder: the run folder.
        tell: is told what is being done, in a few words.
        rank: number of this process, from 0, of those that share every batch.
        n_ranks: how many there are.

    Raises:
        TransomError: the text cannot be read, or does not suit the tokenizer.
    """
    tell("reading the text")
    splits = load_text(recipe.data, base)
    tell("preparing the tokenizer")
    given = given_tokenizers(recipe, folder)
    tokenizer = Tokenizer.train(splits.train.texts, recipe.tokenizer) if given is None else given.source
    tell("reading the text as tokens")
    parts = {"train": splits.train, "valid": splits.valid} | ({"test": splits.test} if splits.test else {})
    streams, training = {name: Stream(part, tokenizer) for name, part in parts.items()}, recipe.training
    windows = WindowLoader(
        streams["train"],
        max_seq_len=recipe.model.max_seq_len,
        batch_tokens=training.batch_tokens,
        seed=training.seed,
        accumulate=training.accumulate,
        shard=rank,
        n_shards=n_ranks,
    )
    return Text(splits, tokenizer, streams, windows)
