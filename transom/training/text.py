"""Plain text made ready for the tasks that learn from it: documents, tokenizer, streams of tokens."""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from transom.config.recipe import LanguageRecipe, MaskedRecipe
from transom.inputs.documents import TextSplits, load_text
from transom.inputs.tokenizer import Tokenizer
from transom.inputs.windows import Stream
from transom.training.start import given_tokenizers
from transom.weights.run_folder import RunFolder


@dataclass(frozen=True)
class Text:
    """The text of a run.

    Attributes:
        splits: its documents.
        tokenizer: of all of them.
        streams: the same as tokens, by the split's name.
    """

    splits: TextSplits
    tokenizer: Tokenizer
    streams: dict[str, Stream]

    @property
    def fingerprint(self) -> str:
        """Hash training and validation text in their order, so that a run can tell whether its data are still the same."""
        total = blake2b(digest_size=16)
        for documents in (self.splits.train, self.splits.valid):
            for text in documents.texts:
                total.update(text.encode() + b"\0")
            total.update(b"\1")
        return total.hexdigest()


def read_text(recipe: LanguageRecipe | MaskedRecipe, base: Path, folder: RunFolder, tell: Callable[[str], None]) -> Text:
    """Read a recipe's text, and make its tokenizer or load that of the run to go on with.

    Args:
        recipe: what to train.
        base: folder that ``data.root`` is relative to.
        folder: the run folder.
        tell: is told what is being done, in a few words.

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
    return Text(splits, tokenizer, {name: Stream(part, tokenizer) for name, part in parts.items()})
