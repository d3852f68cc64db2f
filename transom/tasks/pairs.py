"""Loads the splits, tokenizers and training batches of the tasks that train on text pairs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transom.config.data import LanguageConfig
from transom.config.model import TextEmbedderConfig
from transom.config.recipe import PairRecipe
from transom.data.pairs.datasets import load_multilingual_data
from transom.data.pairs.loader import PairCollateFn, PairLoader
from transom.data.pairs.pairs import Pairs, concatenate
from transom.data.split import Splits
from transom.data.tokenizer.tokenizer import Tokenizers
from transom.errors import ConfigError
from transom.training.finetune import data_root, load_existing_tokenizers
from transom.training.task_protocol import TaskContext


@dataclass(frozen=True)
class TokenizedPairs:
    """The tokenized text pairs of a run.

    The keys of both mappings are the tags of the target languages. A recipe without ``data.languages`` has the single key None.

    Attributes:
        recipe: the recipe, fitted to the amount of data.
        splits: training, validation and test pairs of each target language.
        tokenizers: tokenizers of the source texts and of the target texts.
        loaders: loader of the training batches of each target language.
    """

    recipe: Any
    splits: Mapping[str | None, Splits[Pairs]]
    tokenizers: Tokenizers
    loaders: Mapping[str | None, PairLoader]


def load_tokenized_pairs(
    recipe: PairRecipe, context: TaskContext, collate_fn: PairCollateFn, languages: Sequence[LanguageConfig] = ()
) -> TokenizedPairs:
    """Read the text pairs of a recipe, prepare its tokenizers, and build the loaders of its training batches.

    The tokenizers of a resumed run, or of the original run in fine-tuning, are loaded. Otherwise, tokenizers are trained on the training
    pairs.

    Args:
        recipe: the recipe to train.
        context: folders, progress callback and rank of the training run.
        collate_fn: function that builds a batch from the token IDs and the indices of some pairs.
        languages: the target languages of a multilingual recipe; empty for other recipes.

    Raises:
        TransomError: the data cannot be read or do not fit the recipe.
    """
    context.notify("reading the data")
    splits = load_multilingual_data(recipe.data, context.base, languages)
    train_sets = [of_language.train for of_language in splits.values()]
    recipe = context.fit(recipe, sum(map(len, train_sets)), [text for pairs in train_sets for text in pairs.target])
    context.notify("preparing the tokenizer")
    tags = [to for to in splits if to is not None]
    tokenizers = load_existing_tokenizers(recipe, context.folder) or Tokenizers.train(
        concatenate(train_sets), recipe.tokenizer, tags, data_root(recipe, context.base)
    )
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
            micro_batching=context.micro_batching(training, aligned=isinstance(recipe.model, TextEmbedderConfig)),
            collate_fn=collate_fn,
            source_prefix=() if to is None else tokenizers.source.language_prefix(to),
        )
        for to, of_language in splits.items()
    }
    return TokenizedPairs(recipe, splits, tokenizers, loaders)


def train_pair_tokenizers(
    recipe: PairRecipe, base: Path, notify: Callable[[str], None], languages: Sequence[LanguageConfig] = ()
) -> Tokenizers:
    """Train the tokenizers of a recipe on its training pairs.

    Args:
        recipe: the recipe with the data and the tokenizer settings.
        base: folder that a relative ``data.root`` is resolved against.
        notify: called with a line that states the number of pairs, before the tokenizers are trained.
        languages: the target languages of a multilingual recipe; empty for other recipes.
    """
    splits = load_multilingual_data(recipe.data, base, languages)
    pairs = concatenate([of_language.train for of_language in splits.values()])
    notify(f"training the tokenizers on {len(pairs.source):,} pairs ...")
    return Tokenizers.train(pairs, recipe.tokenizer, [to for to in splits if to is not None], data_root(recipe, base))


def _check_tags(tags: list[str], known: tuple[str, ...]) -> None:
    """Raise an error if the tags of the target languages do not match the tags that the tokenizer was trained with.

    If the tokenizer has tags, there must be at least one language, and each language must have one of these tags. If the tokenizer has no
    tags, there must be no languages.
    """
    if not set(tags) <= set(known) or bool(tags) != bool(known):
        raise ConfigError(
            f"data.languages: expected {'tags among ' + ', '.join(known) if known else 'no languages'}, as when the tokenizer was trained,"
            f" found {', '.join(tags) or 'none'}; change data.languages or start a new run"
        )
