"""Where a run's weights and tokenizer come from when it goes on from another run's: fine-tuning."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from transom.config.adapter import Lora
from transom.config.architecture import Architecture
from transom.config.recipe import Recipe, TextRecipe
from transom.config.recurrent import Recurrent
from transom.config.vision import ImageClassifier
from transom.errors import CheckpointError, ConfigError
from transom.inputs.tokenizer import Tokenizer, Tokenizers
from transom.layers.position import resized_grid
from transom.models.adapt import adapt
from transom.models.vision import VisionTransformer
from transom.training.tasks.task import Reader
from transom.weights.run_folder import BASE, TOKENIZER, WEIGHTS, RunFolder


def given_tokenizers(recipe: Recipe, folder: RunFolder) -> Tokenizers | None:
    """Load the tokenizers of the run to go on with, or of the run to start from; None where they are to be learned.

    Args:
        recipe: what to train.
        folder: the run folder.

    Raises:
        CheckpointError: they are missing or damaged.
    """
    if folder.holds_recipe:
        return Tokenizers.load(folder.path / TOKENIZER)
    if recipe.training.start_from is not None:
        return Tokenizers.load(RunFolder.open(Path(recipe.training.start_from)).path / TOKENIZER)
    return None


def tokenizer_of(texts: Iterable[str], recipe: TextRecipe, reader: Reader) -> Tokenizer:
    """Learn the symbols of training texts, unless another run's are given."""
    reader.tell("preparing the tokenizer")
    given = given_tokenizers(recipe, reader.folder)
    return Tokenizer.train(texts, recipe.tokenizer) if given is None else given.source


GRID = "embedding.position.table.weight"
"""Learned positions of patches, which are brought to another image size."""

CHOSEN_ANEW = {"kind", "pool", "classes", "temperature", "mask"} | {
    f"{place}dropout" for place in ("", "attention_", "feed_forward_", "pooler_", "head_")
}
"""Fields of a model that fine-tuning may change: no weight of the shared part depends on them."""


def shaped_like(recipe: Recipe, model: Architecture) -> Recipe:
    """Take over the widths and bricks of another run's model; fields that no weight depends on stay the recipe's.

    Raises:
        ConfigError: one is recurrent and the other is not: they have no layer in common.
    """
    if isinstance(recipe.model, Recurrent) != isinstance(model, Recurrent):
        raise ConfigError(
            f"training.start_from: expected a run of the same kind of network as {recipe.model.kind}, found {model.kind}; name such a run"
        )
    anew = CHOSEN_ANEW | {"image_size"} - {"pool"} if isinstance(model, ImageClassifier) else CHOSEN_ANEW
    shared = [name for name in type(model).model_fields if name in type(recipe.model).model_fields and name not in anew]
    return recipe.with_fields("model", **{name: getattr(model, name) for name in shared})


class Taken(NamedTuple):
    """What was taken over from a run.

    Attributes:
        note: a sentence that says so.
        fresh: names of the tensors that it does not have.
    """

    note: str
    fresh: list[str]


def start_from(model: nn.Module, folder: Path) -> Taken:
    """Copy a run's chosen weights into a fresh model where names agree; what the run does not have stays fresh.

    Args:
        model: just built.
        folder: the run to start from.

    Raises:
        CheckpointError: there is no intact run in the folder.
        ConfigError: the run is of a family whose blocks are others.
    """
    run = RunFolder.open(folder)
    run.load_config()
    theirs, ours = run.read_weights(WEIGHTS), model.state_dict()
    if isinstance(model, VisionTransformer) and GRID in theirs and GRID in ours and theirs[GRID].shape != ours[GRID].shape:
        theirs[GRID] = resized_grid(theirs[GRID], len(ours[GRID]))
    shared = [name for name in ours if name in theirs and ours[name].shape == theirs[name].shape]
    blocks = {name for name in ours if any(part in name for part in (".blocks.", ".layers.", ".stages."))}
    if not blocks <= set(shared):
        missing = min(blocks - set(shared))
        raise ConfigError(
            f"training.start_from: expected a run whose blocks are those of this model, found no {missing} in {folder};"
            " name a run of the same kind of network"
        )
    with torch.no_grad():
        for name in shared:
            ours[name].copy_(theirs[name])
    fresh = [name for name in ours if name not in shared]
    kept = f"{len(shared):,} of {len(ours):,} tensors, its widths and bricks"
    return Taken(f"starts from {folder}: {kept}" + (f"; fresh: {', '.join(fresh)}" if fresh else ""), fresh)


def keep_base(model: nn.Module, fresh: Sequence[str], folder: RunFolder) -> None:
    """Leave in a run folder the weights that a run is to adapt; it needs nothing of the run that they are from any more."""
    folder.write_tensors(BASE, {name: x for name, x in model.state_dict().items() if name not in fresh}, step=0)


def adapt_base(model: nn.Module, brick: Lora, folder: RunFolder) -> None:
    """Put the kept weights of a run folder into a plain model, freeze them, and put beside them what learns.

    Raises:
        CheckpointError: they are missing, damaged, or another model's.
    """
    base, ours = folder.read_weights(BASE), model.state_dict()
    if odd := [name for name in base if name not in ours or ours[name].shape != base[name].shape]:
        raise CheckpointError(f"{folder.path / BASE}: expected the weights of this model, found another's {odd[0]}; put the file back")
    with torch.no_grad():
        for name, kept in base.items():
            ours[name].copy_(kept)
    adapt(model, brick, fresh=[name for name in ours if name not in base])
