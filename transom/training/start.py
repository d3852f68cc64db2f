"""Where a run's weights and tokenizer come from when it goes on from another run's: fine-tuning."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from transom.checkpoints.run_files import BASE, CONFIG, RECIPE, TOKENIZER, WEIGHTS
from transom.checkpoints.run_folder import RunFolder
from transom.config.adapter import Lora
from transom.config.approximations import Linformer
from transom.config.architecture import Architecture, Transformer
from transom.config.brick import SLOTS, Brick, Schema
from transom.config.bricks import Rotary
from transom.config.explaining import check
from transom.config.finetune import CHANGEABLE, EFFECTIVE, NOTHING_ASKED, OF_A_TOKENIZER, Asked, is_chosen_anew
from transom.config.model import Encoder, TextTransformer
from transom.config.recipe import Recipe, TextRecipe, load_recipe
from transom.config.vision import ImageClassifier
from transom.data.tokenizer.tokenizer import Tokenizer, Tokenizers
from transom.errors import CheckpointError, ConfigError
from transom.layers.position import resized_grid, resized_line
from transom.models.adapt import adapt
from transom.models.network import Network
from transom.models.vision import VisionTransformer
from transom.training.task import Reader


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


POSITIONS = "position.table.weight"
"""How the names of learned positions end."""

CHOSEN_BY_RUN = {"pool"}
"""Fields of a network for images that are the other run's after all: there a pooled token is a weight."""


class Shaped(NamedTuple):
    """A recipe with the shape of another run's model.

    Attributes:
        recipe: with the fields of that model, but for those that fine-tuning chooses and those that a person asked for.
        notes: sentences on what was changed, and on what the recipe has and is not used.
    """

    recipe: Recipe
    notes: list[str]


def shaped_like(recipe: Recipe, folder: Path, asked: Asked = NOTHING_ASKED) -> Shaped:
    """Take over the shape of a run's model, with the changes that a person asked for and that its weights allow.

    Raises:
        CheckpointError: there is no intact run in the folder.
        ConfigError: the run is of another kind, or a change is asked for that its weights do not allow.
    """
    run = RunFolder.open(folder)
    model = run.load_config()
    if not _may_start(type(recipe.model), type(model)):
        raise ConfigError(
            f"training.start_from = {str(folder)!r}: expected a run of {_kinds_for(recipe.model)}, whose weights fit {recipe.model.kind!r},"
            f" found a run of {model.kind!r}; name another run or choose another recipe"
        )
    names = _shared(recipe.model, model)
    fixed = _askable(names, model) - CHANGEABLE
    for name, new in asked.of("model").items():  # before all is checked together, which says less
        old = getattr(model, name) if name in fixed else None
        same = name not in fixed or isinstance(old, Schema) or (old is None and new == "none")
        if not same and new not in (old, getattr(model, EFFECTIVE.get(name, name))):
            raise _refusal(name, old, new, folder, asked)
    if isinstance(recipe, TextRecipe):
        _refuse_other_tokenizer(recipe, run, asked)
    shaped = laid_over(recipe, model, asked)
    changes = list(_differences(model, shaped.model, names))
    for path, old, new in changes:
        if path not in CHANGEABLE:
            raise _refusal(path, old, new, folder, asked)
    _refuse_other_places(model, shaped.model, folder, asked)
    changed = [f"{path} {_worded(new)} (was {_worded(old)})" for path, old, new in changes]
    notes = [f"changed from the model of {folder}: {', '.join(changed)}"] if changed else []
    written = recipe.model.model_fields_set & _askable(names, model)
    if unused := [f"{path} {_worded(new)}" for path, _, new in _differences(shaped.model, recipe.model, sorted(written))]:
        notes.append(f"the model's shape is that of {folder}; not used are the recipe's {', '.join(unused)}")
    return Shaped(shaped, notes)


def laid_over(recipe: Recipe, model: Architecture, asked: Asked) -> Recipe:
    """Give a recipe the fields of a model that fine-tuning does not choose anew, and over these what a person asked for.

    A yarn scaling that is asked for counts from the length that the model was trained for.

    Raises:
        ConfigError: they do not fit together.
    """
    names = _shared(recipe.model, model)
    filled_in = {*model.VOCABULARIES, *model.FROM_DATA, *recipe.model.VOCABULARIES, *recipe.model.FROM_DATA}
    raw = asked.over("model", recipe.model.model_dump() | model.model_dump(include=set(names)), filled_in)
    made = check(type(recipe.model), raw, lambda path: asked.place(("model", *path)))
    if isinstance(made, TextTransformer) and isinstance(model, TextTransformer):
        new, old = made.position, model.position
        changed = (new, made.max_seq_len) != (old, model.max_seq_len)
        if changed and isinstance(new, Rotary) and isinstance(old, Rotary) and new.scaling == "yarn" and new.trained_seq_len is None:
            squeezed = old.factor if old.scaling == "yarn" else 1.0
            length = old.trained_seq_len or max(1, round(model.max_seq_len / squeezed))
            made = made.model_copy(update={"position": new.model_copy(update={"trained_seq_len": length})})
    return recipe.model_copy(update={"model": made})


def _may_start(ours: type[Brick], theirs: type[Brick]) -> bool:
    return ours is theirs or (issubclass(ours, Encoder) and issubclass(theirs, Encoder))


def _kinds_for(ours: Architecture) -> str:
    """Name the kinds of networks whose runs a network may start from."""
    *kinds, last = [repr(kind) for kind, schema in SLOTS["model"].components.items() if _may_start(type(ours), schema)]
    return f"{', '.join(kinds)} or {last}" if kinds else last


def _shared(ours: Architecture, theirs: Architecture) -> list[str]:
    """Name the fields that are taken over from a run's model."""
    both = [name for name in type(theirs).model_fields if name in type(ours).model_fields]
    if isinstance(theirs, ImageClassifier):
        return [name for name in both if name in CHOSEN_BY_RUN or not (name == "image_size" or is_chosen_anew(name))]
    return [name for name in both if not is_chosen_anew(name)]


def _differences(old: Schema, new: Schema, names: Iterable[str], prefix: str = "") -> Iterator[tuple[str, object, object]]:
    """Yield the fields of two schemas that differ, as deep as their bricks are of the same class: path, old value, new value."""
    for name in names:
        a, b, path = getattr(old, name), getattr(new, name), prefix + name
        same = a == b or (name in EFFECTIVE and getattr(old, EFFECTIVE[name], a) == getattr(new, EFFECTIVE[name], b))
        if same:
            continue
        if isinstance(a, Schema) and isinstance(b, Schema) and type(a) is type(b) and path not in CHANGEABLE:
            yield from _differences(a, b, type(a).model_fields, f"{path}.")
        else:
            yield path, a, b


def _askable(names: Iterable[str], theirs: Architecture) -> set[str]:
    """Leave out the fields that tokenizer and data fill in."""
    return set(names) - {*theirs.VOCABULARIES, *theirs.FROM_DATA}


def _refusal(path: str, old: object, new: object, folder: Path, asked: Asked) -> ConfigError:
    """Make the error of a field that weights do not allow to change."""
    return ConfigError(
        f"{asked.place(('model', *path.split('.')))}: expected model.{path} = {_worded(old)}, with which the weights of {folder} were"
        f" trained, found {_worded(new)}; leave it out, or train without --from"
    )


def _refuse_other_places(old: Architecture, new: Architecture, folder: Path, asked: Asked) -> None:
    """Refuse another number of positions where blocks have a weight for each of them; a table of positions can be resized."""
    if not (isinstance(old, Transformer) and isinstance(new, Transformer) and isinstance(new.attention.approximation, Linformer)):
        return
    if old.n_positions != new.n_positions:
        path = "image_size" if isinstance(new, ImageClassifier) else "max_seq_len"
        raise _refusal(path, getattr(old, path), getattr(new, path), folder, asked)


def _refuse_other_tokenizer(recipe: TextRecipe, run: RunFolder, asked: Asked) -> None:
    """Refuse to be asked for another tokenizer than the run's: each row of its embedding is one of its symbols."""
    names = [name for name in OF_A_TOKENIZER if name in asked.of("tokenizer")]
    theirs = load_recipe(run.path / RECIPE)[0] if names else recipe
    for name in names:
        old, new = getattr(getattr(theirs, "tokenizer", None), name, None), getattr(recipe.tokenizer, name)
        if old is not None and old != new:
            raise ConfigError(
                f"{asked.place(('tokenizer', name))}: expected tokenizer.{name} = {_worded(old)}, as the tokenizer of {run.path} has it,"
                f" found {_worded(new)}; leave it out, or train without --from"
            )


def _worded(value: object) -> str:
    """Write a field's value as in a recipe; of a brick its kind."""
    if isinstance(value, Schema):
        return repr(getattr(value, "kind", "none"))
    return "'none'" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)


class Taken(NamedTuple):
    """What was taken over from a run.

    Attributes:
        note: a sentence that says so.
        fresh: names of the tensors that it does not have.
    """

    note: str
    fresh: list[str]


def start_from(model: Network, folder: Path) -> Taken:
    """Copy a run's chosen weights into a fresh model where names agree; what the run does not have stays fresh.

    Learned positions are brought to the model's number of them.

    Args:
        model: just built, of the shape that ``shaped_like`` gives.
        folder: the run to start from.

    Raises:
        CheckpointError: there is no intact run in the folder.
    """
    run = RunFolder.open(folder)
    run.load_config()
    theirs, ours = run.read_weights(WEIGHTS), model.state_dict()
    resized = resized_grid if isinstance(model, VisionTransformer) else resized_line
    moved = [name for name in ours if name.endswith(POSITIONS) and name in theirs and len(theirs[name]) != len(ours[name])]
    told = {f"; positions brought from {len(theirs[name]):,} to {len(ours[name]):,}" for name in moved}
    theirs |= {name: resized(theirs[name], len(ours[name])) for name in moved}
    shared = [name for name in ours if name in theirs and ours[name].shape == theirs[name].shape]
    blocks = {name for name in ours if any(part in name for part in (".blocks.", ".layers.", ".stages."))}
    if missing := blocks - set(shared):
        raise CheckpointError(
            f"{run.path / WEIGHTS}: expected the weights of the model in {CONFIG}, found no {min(missing)} of its shape; put the file back"
        )
    with torch.no_grad():
        for name in shared:
            ours[name].copy_(theirs[name])
    fresh = [name for name in ours if name not in shared]
    kept = f"{len(shared):,} of {len(ours):,} tensors, its widths and bricks{''.join(sorted(told))}"
    return Taken(f"starts from {folder}: {kept}" + (f"; fresh: {', '.join(fresh)}" if fresh else ""), fresh)


def keep_base(model: nn.Module, fresh: Sequence[str], folder: RunFolder) -> None:
    """Leave in a run folder the weights that a run is to adapt; it needs nothing of the run that they are from any more."""
    folder.write_tensors(BASE, {name: x for name, x in model.state_dict().items() if name not in fresh}, step=0)


def adapt_base(model: nn.Module, brick: Lora, folder: RunFolder) -> None:
    """Put the kept weights of a run folder into a plain model, freeze them, and put beside them what learns.

    Raises:
        CheckpointError: they are missing, damaged, or another model's.
    """
    ours, tied = model.state_dict(), getattr(model, "tied", {})
    base = {name: kept for name, kept in folder.read_weights(BASE).items() if name not in tied}
    if odd := [name for name in base if name not in ours or ours[name].shape != base[name].shape]:
        raise CheckpointError(f"{folder.path / BASE}: expected the weights of this model, found another's {odd[0]}; put the file back")
    with torch.no_grad():
        for name, kept in base.items():
            ours[name].copy_(kept)
    adapt(model, brick, fresh=[name for name in ours if name not in base])
