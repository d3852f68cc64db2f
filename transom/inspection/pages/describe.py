"""Descriptions of a model for the report and the model card: architecture, vocabulary, usage."""

import shlex
from pathlib import PurePath
from typing import Any, Literal

from transom.config.architecture import TransformerConfig
from transom.config.data import PairTokenizerConfig
from transom.config.depth import MixtureOfDepthsConfig
from transom.config.moe import MoeConfig
from transom.config.patterns import format_pattern
from transom.config.plugins import plugins_of
from transom.config.recipe import Recipe, TextRecipe
from transom.config.recurrent import LuongAttentionConfig, RecurrentConfig, RecurrentSeq2SeqConfig
from transom.config.vision import ConvolutionalNetworkConfig
from transom.inspection.messages.tables import message, message_or
from transom.inspection.pages.number_format import format_count


def describe_family(recipe: Recipe) -> str:
    """Return the kind of network with its article, such as "a decoder-only Transformer"."""
    return recipe.model.FAMILY


def paths_note() -> str:
    """Return the note beside a recipe that ``without_local_paths`` returned."""
    return message("recipe.paths")


def describe_model_kind(recipe: Recipe) -> str:
    """Return the task with its article, such as "A translation model"."""
    return message_or(f"tasks.{recipe.task}", message("other_task", task=recipe.task))


def unit(recipe: Recipe, form: Literal["one", "many", "title", "of_the"]) -> str:
    """Return the unit of a throughput or a loss, such as "target token", "target tokens", "Target tokens", "of the target tokens"."""
    return unit_named(recipe.UNIT, form)


def unit_named(named: str, form: Literal["one", "many", "title", "of_the"]) -> str:
    """Return a form of a unit from its plural; a unit that the tables do not know, such as that of a plugin's task, is its own name."""
    forms = {"one": named.removesuffix("s"), "many": named, "title": named.capitalize(), "of_the": message("other_units", unit=named)}
    return message_or(f"units.{named.replace(' ', '_')}.{form}", forms[form])


def without_local_paths(recipe: Recipe) -> Recipe:
    """Return the recipe with absolute paths reduced to their last component, since folders differ between machines and may be private."""

    def shorten_paths(value: Any) -> Any:
        match value:
            case str():
                return path_basename(value)
            case dict():
                return {name: shorten_paths(each) for name, each in value.items()}
            case list():
                return [shorten_paths(each) for each in value]
            case _:
                return value

    parts = {"data": recipe.data, "training": recipe.training}
    return recipe.model_copy(
        update={name: part.model_validate(shorten_paths(part.model_dump(mode="json"))) for name, part in parts.items()}
    )


def path_basename(text: str) -> str:
    """Return the last component of an absolute path, and any other text unchanged."""
    return (PurePath(text).name or text) if PurePath(text).is_absolute() else text


def describe_initialization(recipe: Recipe) -> str:
    """Return the origin of the initial weights, such as "from scratch" or "from the weights of another run"."""
    if recipe.training.init_from is None:
        return message("start.scratch")
    adapter = recipe.training.adapter
    if adapter is None:
        return message("start.weights")
    return message("start.adapter", kind=adapter.kind, rank=adapter.rank, modules=", ".join(adapter.target_modules))


def describe_layers(recipe: Recipe) -> str:
    """Return the number of layers per stack, such as "3 + 3 layers" for an encoder-decoder."""
    stacks = recipe.model.stacks
    if stacks:
        return message("layers", stacks=" + ".join(map(str, stacks)), n=sum(stacks))
    if isinstance(recipe.model, ConvolutionalNetworkConfig):
        return message("stages", stages=len(recipe.model.stem.channels), n=recipe.model.stem.convs_per_stage)
    return recipe.model.described_layers


def with_article(noun: str) -> str:
    """Prefix a noun with its indefinite article.

    >>> with_article("image"), with_article("token")
    ('an image', 'a token')
    """
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def describe_architecture(recipe: Recipe) -> list[str]:
    """Return lines that describe a model: its components and widths, its vocabulary and its inputs."""
    model = recipe.model
    match model:
        case TransformerConfig():
            lines = [
                f"{model.norm.kind}, placed {model.norm_placement}; positions {model.position.kind};"
                f" feed-forward {_describe_feed_forward(model)}",
                f"width {model.d_model}, {_describe_heads(model)}, feed-forward width {model.d_ff}",
            ]
            decoder = model.of_stack("decoder")
            if decoder != model:
                lines.append(f"the decoder has {decoder.n_heads} heads of width {decoder.d_head}, and feed-forward width {decoder.d_ff}")
            if isinstance(depth := model.depth, MixtureOfDepthsConfig):
                lines.append(f"mixture of depths: one of every {depth.every} blocks processes {100 * depth.capacity:g}% of the tokens")
        case RecurrentConfig():
            embedding = "" if model.d_embedding == model.d_model else f", embeddings of {model.d_embedding}"
            lines = [_describe_recurrent_attention(model)] if isinstance(model, RecurrentSeq2SeqConfig) else []
            lines.append(f"cell {model.cell.kind}, width {model.d_model}{embedding}")
        case _:
            lines = [f"width {model.d_model}"]
    return [*lines, *([describe_vocabulary(recipe)] if isinstance(recipe, TextRecipe) else []), *model.described_inputs]


def _describe_feed_forward(model: TransformerConfig) -> str:
    """Return the kind of feed-forward network, or its experts, such as "mixture of 8 swiglu experts, top 2 per token"."""
    config = model.feed_forward
    if not isinstance(config, MoeConfig):
        return config.kind
    width = "" if config.d_expert is None else f" of width {config.d_expert}"
    shared = f" and {config.n_shared_experts} shared" if config.n_shared_experts else ""
    return f"mixture of {config.n_experts} {config.expert.kind} experts{width}, top {config.top_k} per token{shared}"


def _describe_recurrent_attention(model: RecurrentSeq2SeqConfig) -> str:
    """Return direction and attention of a recurrent translator, such as "bidirectional encoder; attention additive"."""
    read = "bidirectional" if model.bidirectional else "unidirectional"
    match model.attention:
        case LuongAttentionConfig(score=score, input_feeding=input_feeding):
            return f"{read} encoder; attention luong, score {score}{', input feeding' if input_feeding else ''}"
        case attention:
            return f"{read} encoder; attention {attention.kind}"


def _describe_heads(model: TransformerConfig) -> str:
    """Return heads and attention features, such as "8 heads of width 64, 2 key-value heads, QK-norm"."""
    shared = f", {model.n_kv_heads} key-value heads" if model.n_kv_heads != model.n_heads else ""
    config = model.attention
    features = {
        "QK-norm": config.qk_norm.kind != "none",
        "sinks": config.sinks,
        "value residual": config.value_residual.kind != "none",
    }
    extras = [name for name, is_enabled in features.items() if is_enabled]
    if config.score.kind != "scaled-dot":
        extras.append(f"{config.score.kind} scores")
    if config.softcap is not None:
        extras.append(f"softcap {config.softcap:g}")
    if config.pattern.kind != "full":
        extras.append(f"pattern {format_pattern(config.pattern)}")
    if config.approximation.kind != "none":
        extras.append(f"approximate attention: {config.approximation.kind}")
    return f"{model.n_heads} heads of width {model.d_head}{shared}{''.join(f', {extra}' for extra in extras)}"


def describe_vocabulary(recipe: TextRecipe) -> str:
    """Return kind and size of the vocabulary, such as "bpe symbols, joint vocabulary (8,000 symbols)"."""
    tokenizer, vocab_sizes = recipe.tokenizer, [getattr(recipe.model, name) for name in recipe.model.VOCABULARIES]
    case = ", lower-cased" if tokenizer.lowercase else ""
    if not (isinstance(tokenizer, PairTokenizerConfig) and len(vocab_sizes) > 1):
        return f"{tokenizer.kind} symbols{'' if None in vocab_sizes else f' ({format_count(vocab_sizes[0])})'}{case}"
    both = "joint vocabulary" if tokenizer.joint else "separate source and target vocabularies"
    if None in vocab_sizes:
        return f"{tokenizer.kind} symbols, {both}{case}"
    counts = format_count(vocab_sizes[0]) if tokenizer.joint else f"{format_count(vocab_sizes[0])} and {format_count(vocab_sizes[1])}"
    return f"{tokenizer.kind} symbols, {both} ({counts} symbols){case}"


def usage_example(recipe: Recipe, name: str) -> tuple[str, str]:
    """Return an example of inference with the run folder ``name``: a command, and lines of Python."""
    arguments, call = recipe.example
    plugins = [plugin.where for plugin in plugins_of(recipe)]
    command = f"transom {recipe.COMMAND} {shlex.quote(name)} {arguments}{''.join(f' --plugin {shlex.quote(each)}' for each in plugins)}"
    return command, f"import transom\n\ntransom.load({name!r}{f', plugins={plugins}' if plugins else ''}).{recipe.COMMAND}({call})"
