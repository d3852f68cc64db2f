"""Pairs of texts for the tasks that train on them: splits, tokenizers and training batches."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transom.config.data import LanguageConfig
from transom.config.recipe import PairRecipe
from transom.data.pairs.datasets import load_multilingual_data
from transom.data.pairs.loader import CollateFn, PairLoader
from transom.data.pairs.pairs import Pairs, concatenate
from transom.data.split import Splits
from transom.data.tokenizer.tokenizer import Tokenizers
from transom.errors import ConfigError
from transom.training.finetune import load_existing_tokenizers
from transom.training.task_protocol import TaskContext


@dataclass(frozen=True)
class TokenizedPairs:
    """The pairs of a run, by the tag of their target language; the key is None if there is only one language.

    Attributes:
        recipe: the recipe, fitted to the amount of data.
        splits: training, validation and test pairs.
        tokenizers: tokenizers of source and target.
        loaders: training batches.
    """

    recipe: Any
    splits: Mapping[str | None, Splits[Pairs]]
    tokenizers: Tokenizers
    loaders: Mapping[str | None, PairLoader]


def load_tokenized_pairs(
    recipe: PairRecipe, context: TaskContext, collate_fn: CollateFn, languages: Sequence[LanguageConfig] = ()
) -> TokenizedPairs:
    """Read the pairs of a recipe, train its tokenizers or load those of another run, and build training batches.

    Args:
        recipe: the recipe to train.
        context: the context in which the data are read.
        collate_fn: builds a batch.
        languages: the target languages of a multilingual recipe.

    Raises:
        TransomError: the data cannot be read or do not fit the recipe.
    """
    context.notify("reading the data")
    splits = load_multilingual_data(recipe.data, context.base, languages)
    train_sets = [of_language.train for of_language in splits.values()]
    recipe = context.fit(recipe, sum(map(len, train_sets)), [text for pairs in train_sets for text in pairs.target])
    context.notify("preparing the tokenizer")
    tags = [to for to in splits if to is not None]
    tokenizers = load_existing_tokenizers(recipe, context.folder) or Tokenizers.train(concatenate(train_sets), recipe.tokenizer, tags)
    _check_tags(tags, tokenizers.source.tags)
    training = recipe.training
    loaders = {
        to: PairLoader(
            of_language.train,
            tokenizers,
            max_seq_len=recipe.model.max_seq_len,
            batch_tokens=training.batch_tokens,
            seed=training.seed,
            dropout=recipe.tokenizer.bpe_dropout,
            max_length_ratio=recipe.data.max_length_ratio,
            micro_batching=context.micro_batching(training),
            collate_fn=collate_fn,
            source_prefix=() if to is None else tokenizers.source.language_prefix(to),
        )
        for to, of_language in splits.items()
    }
    return TokenizedPairs(recipe, splits, tokenizers, loaders)


def train_pair_tokenizers(
    recipe: PairRecipe, base: Path, notify: Callable[[str], None], languages: Sequence[LanguageConfig] = ()
) -> Tokenizers:
    """Train the tokenizers of a recipe on its training pairs; call ``notify`` with a line of progress."""
    splits = load_multilingual_data(recipe.data, base, languages)
    pairs = concatenate([of_language.train for of_language in splits.values()])
    notify(f"training the tokenizers on {len(pairs.source):,} pairs ...")
    return Tokenizers.train(pairs, recipe.tokenizer, [to for to in splits if to is not None])


def _check_tags(tags: list[str], known: tuple[str, ...]) -> None:
    """Check that the languages match the tags of the tokenizer: each has a tag, and there are some if and only if it has tags."""
    if not set(tags) <= set(known) or bool(tags) != bool(known):
        raise ConfigError(
            f"data.languages: expected {'tags among ' + ', '.join(known) if known else 'none'}, with which the tokenizer was trained,"
            f" found {', '.join(tags) or 'none'}; change them or start a new run"
        )
