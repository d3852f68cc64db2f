"""Pairs made ready for the tasks that learn from them: both sides, their tokenizers, training batches."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from transom.config.recipe import EmbeddingRecipe, TranslationRecipe
from transom.inputs.datasets import load_data
from transom.inputs.loader import Loader, MakeBatch
from transom.inputs.pairs import Splits
from transom.inputs.tokenizer import Tokenizers
from transom.training.start import given_tokenizers
from transom.weights.run_folder import RunFolder


@dataclass(frozen=True)
class PairedText:
    """The pairs of a run.

    Attributes:
        splits: all of them.
        tokenizers: of both sides.
        loader: training batches.
    """

    splits: Splits
    tokenizers: Tokenizers
    loader: Loader


def read_pairs(
    recipe: TranslationRecipe | EmbeddingRecipe,
    base: Path,
    folder: RunFolder,
    tell: Callable[[str], None],
    rank: int,
    n_ranks: int,
    make: MakeBatch,
) -> PairedText:
    """Read a recipe's pairs, make its tokenizers or load those of another run, and lay out training batches.

    Args:
        recipe: what to train.
        base: folder that ``data.root`` is relative to.
        folder: the run folder.
        tell: is told what is being done, in a few words.
        rank: number of this process, from 0, of those that share every batch.
        n_ranks: how many there are.
        make: makes a batch.

    Raises:
        TransomError: the data cannot be read, or do not fit the recipe.
    """
    tell("reading the data")
    splits = load_data(recipe.data, base)
    tell("preparing the tokenizer")
    tokenizers = given_tokenizers(recipe, folder) or Tokenizers.train(splits.train, recipe.tokenizer)
    training = recipe.training
    loader = Loader(
        splits.train,
        tokenizers,
        max_seq_len=recipe.model.max_seq_len,
        batch_tokens=training.batch_tokens,
        seed=training.seed,
        dropout=recipe.tokenizer.dropout,
        max_length_ratio=recipe.data.max_length_ratio,
        accumulate=training.accumulate,
        shard=rank,
        n_shards=n_ranks,
        make=make,
    )
    return PairedText(splits, tokenizers, loader)
