"""What differs between tasks in the words of the report and the card: what the model is, what it reads, how it is used."""

import shlex
from pathlib import PurePath
from typing import Any

from transom.config.architecture import Transformer
from transom.config.data import PairTokenizer
from transom.config.depth import MixtureOfDepths
from transom.config.mixture import Mixture
from transom.config.patterns import spelled
from transom.config.plugins import plugins_of
from transom.config.recipe import Recipe, TextRecipe
from transom.config.recurrent import Luong, Recurrent, RecurrentSeq2Seq
from transom.inspection.figures import whole


def family(recipe: Recipe) -> str:
    """Name the kind of network."""
    return recipe.model.FAMILY


PORTABLE = "As in recipe.toml, but of whole paths only the last name"
"""What is said of a recipe that was made portable."""


def portable(recipe: Recipe) -> Recipe:
    """Leave out what means something on one machine alone, and may tell of its owner: the folders of whole paths."""

    def shortened(value: Any) -> Any:
        match value:
            case str():
                return last_name(value)
            case dict():
                return {name: shortened(each) for name, each in value.items()}
            case list():
                return [shortened(each) for each in value]
            case _:
                return value

    parts = {"data": recipe.data, "training": recipe.training}
    return recipe.model_copy(update={name: part.model_validate(shortened(part.model_dump(mode="json"))) for name, part in parts.items()})


def last_name(text: str) -> str:
    """Give the last name of a whole path, and any other text as it is."""
    return (PurePath(text).name or text) if PurePath(text).is_absolute() else text


def origin(recipe: Recipe) -> str:
    """Say what the first weights were."""
    if recipe.training.start_from is None:
        return "from scratch"
    adapter = recipe.training.adapter
    by = "" if adapter is None else f", by {adapter.kind} of rank {adapter.rank} on {', '.join(adapter.on)}"
    return f"from the weights of another run{by}"


def layers_in_short(recipe: Recipe) -> str:
    """Count the layers in a few characters, as in "3 + 3 layers"."""
    stacks = recipe.model.stacks
    return f"{' + '.join(map(str, stacks))} layer{'' if stacks == (1,) else 's'}" if stacks else recipe.model.described_layers


def article(noun: str) -> str:
    """Put the indefinite article before a noun.

    >>> article("image"), article("token")
    ('an image', 'a token')
    """
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def sizes(recipe: Recipe) -> list[str]:
    """Describe bricks and widths, an entry each."""
    model = recipe.model
    match model:
        case Transformer():
            lines = [
                f"{model.norm.kind}, placed {model.norm_placement}; positions {model.position.kind}; feed-forward {_feed_forward(model)}",
                f"width {model.d_model}, {_heads(model)}, feed-forward width {model.d_ff}",
            ]
            if isinstance(depth := model.depth, MixtureOfDepths):
                lines.append(f"of every {depth.every} blocks one for {100 * depth.capacity:g} % of the tokens")
        case Recurrent():
            embedding = "" if model.width_of_embedding == model.d_model else f", embeddings of {model.width_of_embedding}"
            lines = [_looks(model)] if isinstance(model, RecurrentSeq2Seq) else []
            lines.append(f"cell {model.cell.kind}, width {model.d_model}{embedding}")
        case _:
            lines = [f"width {model.d_model}"]
    return [*lines, *([symbols(recipe)] if isinstance(recipe, TextRecipe) else []), *model.described_inputs]


def _feed_forward(model: Transformer) -> str:
    """Name the feed-forward network, or what a mixture is of."""
    brick = model.feed_forward
    if not isinstance(brick, Mixture):
        return brick.kind
    width = "" if brick.d_expert is None else f" of width {brick.d_expert}"
    shared = f" and {brick.n_shared} shared" if brick.n_shared else ""
    return f"mixture of {brick.n_experts} {brick.expert.kind} experts{width}, {brick.top_k} a token{shared}"


def _looks(model: RecurrentSeq2Seq) -> str:
    """Describe how the source is read and seen."""
    read = "from both ends" if model.bidirectional else "from its start"
    match model.attention:
        case Luong(score=score, input_feeding=fed):
            return f"source read {read}; attention luong, score {score}{', input feeding' if fed else ''}"
        case attention:
            return f"source read {read}; attention {attention.kind}"


def _heads(model: Transformer) -> str:
    """Describe the attention heads."""
    shared = f", {model.key_heads} of keys and values" if model.key_heads != model.n_heads else ""
    brick = model.attention
    there = {
        "QK-norm": brick.qk_norm.kind != "none",
        "sinks": brick.sinks,
        "values mixed with the first block's": brick.value_residual.kind != "none",
    }
    extras = [name for name, is_there in there.items() if is_there]
    if brick.softcap is not None:
        extras.append(f"scores bounded at {brick.softcap:g}")
    if brick.pattern.kind != "full":
        extras.append(f"pattern {spelled(brick.pattern)}")
    if brick.approximation.kind != "none":
        extras.append(f"attention approximated: {brick.approximation.kind}")
    return f"{model.n_heads} heads of width {model.width_of_head}{shared}{''.join(f', {extra}' for extra in extras)}"


def symbols(recipe: TextRecipe) -> str:
    """Describe the vocabulary."""
    tokenizer, sizes = recipe.tokenizer, [getattr(recipe.model, name) for name in recipe.model.VOCABULARIES]
    case = ", lower case" if tokenizer.lowercase else ""
    if not (isinstance(tokenizer, PairTokenizer) and len(sizes) > 1):
        return f"{tokenizer.kind} symbols{'' if None in sizes else f' ({whole(sizes[0])})'}{case}"
    both = "one vocabulary for both sides" if tokenizer.joint else "a vocabulary for each side"
    if None in sizes:
        return f"{tokenizer.kind} symbols, {both}{case}"
    counts = whole(sizes[0]) if tokenizer.joint else f"{whole(sizes[0])} and {whole(sizes[1])}"
    return f"{tokenizer.kind} symbols, {both} ({counts} symbols){case}"


def use(recipe: Recipe, name: str) -> tuple[str, str]:
    """Give the command and the lines of Python that answer with a run's model."""
    arguments, call = recipe.example
    plugins = [plugin.where for plugin in plugins_of(recipe)]
    command = f"transom {recipe.VERB} {shlex.quote(name)} {arguments}{''.join(f' --plugin {shlex.quote(each)}' for each in plugins)}"
    return command, f"import transom\n\ntransom.load({name!r}{f', plugins={plugins}' if plugins else ''}).{recipe.VERB}({call})"
