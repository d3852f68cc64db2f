"""Descriptions of a model for the report and the model card: architecture, vocabulary, usage."""

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
    """Return a phrase for the kind of network, with its article."""
    return recipe.model.FAMILY


PORTABLE = "As in recipe.toml, with absolute paths reduced to their last component"
"""Note on a recipe without local paths."""


def portable(recipe: Recipe) -> Recipe:
    """Reduce absolute paths to their last component: folders are specific to one machine and may be private."""

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
    """Return the last component of an absolute path, and any other text unchanged."""
    return (PurePath(text).name or text) if PurePath(text).is_absolute() else text


def origin(recipe: Recipe) -> str:
    """Describe the initial weights."""
    if recipe.training.start_from is None:
        return "from scratch"
    adapter = recipe.training.adapter
    by = "" if adapter is None else f", by {adapter.kind} of rank {adapter.rank} on {', '.join(adapter.on)}"
    return f"from the weights of another run{by}"


def layers_in_short(recipe: Recipe) -> str:
    """Describe the layers in a few characters, as in "3 + 3 layers"."""
    stacks = recipe.model.stacks
    return f"{' + '.join(map(str, stacks))} layer{'' if stacks == (1,) else 's'}" if stacks else recipe.model.described_layers


def article(noun: str) -> str:
    """Prefix a noun with its indefinite article.

    >>> article("image"), article("token")
    ('an image', 'a token')
    """
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def sizes(recipe: Recipe) -> list[str]:
    """Describe components and widths, one entry each."""
    model = recipe.model
    match model:
        case Transformer():
            lines = [
                f"{model.norm.kind}, placed {model.norm_placement}; positions {model.position.kind}; feed-forward {_feed_forward(model)}",
                f"width {model.d_model}, {_heads(model)}, feed-forward width {model.d_ff}",
            ]
            if isinstance(depth := model.depth, MixtureOfDepths):
                lines.append(f"mixture of depths: one of every {depth.every} blocks processes {100 * depth.capacity:g} % of the tokens")
        case Recurrent():
            embedding = "" if model.width_of_embedding == model.d_model else f", embeddings of {model.width_of_embedding}"
            lines = [_looks(model)] if isinstance(model, RecurrentSeq2Seq) else []
            lines.append(f"cell {model.cell.kind}, width {model.d_model}{embedding}")
        case _:
            lines = [f"width {model.d_model}"]
    return [*lines, *([symbols(recipe)] if isinstance(recipe, TextRecipe) else []), *model.described_inputs]


def _feed_forward(model: Transformer) -> str:
    """Describe the feed-forward network or mixture of experts."""
    brick = model.feed_forward
    if not isinstance(brick, Mixture):
        return brick.kind
    width = "" if brick.d_expert is None else f" of width {brick.d_expert}"
    shared = f" and {brick.n_shared} shared" if brick.n_shared else ""
    return f"mixture of {brick.n_experts} {brick.expert.kind} experts{width}, top {brick.top_k} per token{shared}"


def _looks(model: RecurrentSeq2Seq) -> str:
    """Describe the encoder direction and the attention of a recurrent translator."""
    read = "bidirectional" if model.bidirectional else "unidirectional"
    match model.attention:
        case Luong(score=score, input_feeding=fed):
            return f"{read} encoder; attention luong, score {score}{', input feeding' if fed else ''}"
        case attention:
            return f"{read} encoder; attention {attention.kind}"


def _heads(model: Transformer) -> str:
    """Describe the attention heads."""
    shared = f", {model.key_heads} key-value heads" if model.key_heads != model.n_heads else ""
    brick = model.attention
    there = {
        "QK-norm": brick.qk_norm.kind != "none",
        "sinks": brick.sinks,
        "value residual": brick.value_residual.kind != "none",
    }
    extras = [name for name, is_there in there.items() if is_there]
    if brick.score.kind != "scaled-dot":
        extras.append(f"{brick.score.kind} scores")
    if brick.softcap is not None:
        extras.append(f"softcap {brick.softcap:g}")
    if brick.pattern.kind != "full":
        extras.append(f"pattern {spelled(brick.pattern)}")
    if brick.approximation.kind != "none":
        extras.append(f"approximate attention: {brick.approximation.kind}")
    return f"{model.n_heads} heads of width {model.width_of_head}{shared}{''.join(f', {extra}' for extra in extras)}"


def symbols(recipe: TextRecipe) -> str:
    """Describe the vocabulary."""
    tokenizer, sizes = recipe.tokenizer, [getattr(recipe.model, name) for name in recipe.model.VOCABULARIES]
    case = ", lower-cased" if tokenizer.lowercase else ""
    if not (isinstance(tokenizer, PairTokenizer) and len(sizes) > 1):
        return f"{tokenizer.kind} symbols{'' if None in sizes else f' ({whole(sizes[0])})'}{case}"
    both = "joint vocabulary" if tokenizer.joint else "separate source and target vocabularies"
    if None in sizes:
        return f"{tokenizer.kind} symbols, {both}{case}"
    counts = whole(sizes[0]) if tokenizer.joint else f"{whole(sizes[0])} and {whole(sizes[1])}"
    return f"{tokenizer.kind} symbols, {both} ({counts} symbols){case}"


def use(recipe: Recipe, name: str) -> tuple[str, str]:
    """Return the command and the Python lines that use a run's model."""
    arguments, call = recipe.example
    plugins = [plugin.where for plugin in plugins_of(recipe)]
    command = f"transom {recipe.VERB} {shlex.quote(name)} {arguments}{''.join(f' --plugin {shlex.quote(each)}' for each in plugins)}"
    return command, f"import transom\n\ntransom.load({name!r}{f', plugins={plugins}' if plugins else ''}).{recipe.VERB}({call})"
