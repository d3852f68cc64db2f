"""What differs between tasks in the words of the report and the card: what the model is, what it reads, how it is used."""

import shlex

from transom.config.architecture import Architecture, Transformer, TwoSided
from transom.config.data import ImageFiles, LabelledFiles, PairFiles, TextFiles
from transom.config.mixture import Mixture
from transom.config.model import Decoder, Encoder, TextTransformer
from transom.config.recipe import ImageRecipe, Recipe, TextRecipe, TranslationRecipe
from transom.config.recurrent import Luong, Recurrent, RecurrentDecoder, RecurrentSeq2Seq
from transom.config.vision import ConvolutionalNetwork, ImageClassifier, VisionTransformer
from transom.inspection.figures import whole


def family(recipe: Recipe) -> str:
    """Name the kind of network."""
    return {
        "seq2seq": "an encoder-decoder Transformer",
        "recurrent-seq2seq": "a recurrent encoder-decoder",
        "decoder": "a decoder-only Transformer",
        "recurrent-decoder": "a recurrent network",
        "encoder": "an encoder-only Transformer for masked tokens",
        "text-classifier": "an encoder-only Transformer for classes of texts",
        "text-embedder": "an encoder-only Transformer for vectors of texts",
        "vision-transformer": "a Vision Transformer for classes of images",
        "convolutional": "a convolutional network for classes of images",
    }[recipe.model.kind]


def origin(recipe: Recipe) -> str:
    """Say what the first weights were."""
    return "from scratch" if recipe.training.start_from is None else "from the weights of another run"


def layers(recipe: Recipe) -> str:
    """Count the layers, stack by stack."""
    match recipe.model:
        case TwoSided(n_encoder_layers=n_encoder, n_decoder_layers=n_decoder):
            return f"an encoder of {_layers(n_encoder)}, a decoder of {_layers(n_decoder)}"
        case Decoder(n_layers=n) | RecurrentDecoder(n_layers=n):
            return f"a decoder of {_layers(n)}"
        case Encoder(n_layers=n) | VisionTransformer(n_layers=n):
            return f"an encoder of {_layers(n)}"
        case ConvolutionalNetwork(stem=stem):
            return f"{len(stem.channels)} stages of {_convolutions(stem.depth)}"
        case _:
            raise AssertionError(recipe.model.kind)


def layers_in_short(recipe: Recipe) -> str:
    """Count the layers in a few characters, as in "3 + 3 layers"."""
    stacks = recipe.model.stacks
    return f"{' + '.join(map(str, stacks))} layers" if stacks else layers(recipe)


def sizes(recipe: Recipe) -> list[str]:
    """Describe bricks and widths, an entry each."""
    match recipe.model:
        case Transformer() as model:
            bricks = f"positions {model.position.kind}; feed-forward {_feed_forward(model)}"
            return [
                f"{model.norm.kind}, placed {model.norm_placement}; {bricks}",
                f"width {model.d_model}, {_heads(model)}, feed-forward width {model.d_ff}",
                *([symbols(recipe)] if isinstance(recipe, TextRecipe) else []),
                *_of_images(model),
                *([f"sequences of at most {whole(model.max_seq_len)} tokens"] if isinstance(model, TextTransformer) else []),
            ]
        case ConvolutionalNetwork() as model:
            return [f"width {model.d_model}", *_of_images(model)]
        case Recurrent() as model:
            embedding = "" if model.width_of_embedding == model.d_model else f", embeddings of {model.width_of_embedding}"
            return [
                *([_looks(model)] if isinstance(model, RecurrentSeq2Seq) else []),
                f"cell {model.cell.kind}, width {model.d_model}{embedding}",
                *([symbols(recipe)] if isinstance(recipe, TextRecipe) else []),
                f"sequences of at most {whole(model.max_seq_len)} tokens",
            ]
        case _:
            raise AssertionError(recipe.model.kind)


def _of_images(model: Architecture) -> list[str]:
    """Describe what is read of images, where it is."""
    if not isinstance(model, ImageClassifier):
        return []
    kind = "colour" if model.channels == 3 else "grey"
    size = f"{kind} images of {model.image_size} x {model.image_size} pixels"
    patches = f", {model.grid} x {model.grid} patches" if isinstance(model, VisionTransformer) else ""
    maps = ", ".join(map(str, model.maps[1:]))
    return [f"{size}{patches}{f', behind stages of {maps} channels' if maps else ''}"]


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
    extras = [name for name, there in (("QK-norm", model.attention.qk_norm.kind != "none"), ("sinks", model.attention.sinks)) if there]
    if model.attention.softcap is not None:
        extras.append(f"scores bounded at {model.attention.softcap:g}")
    if model.attention.approximation.kind != "none":
        extras.append(f"attention approximated: {model.attention.approximation.kind}")
    return f"{model.n_heads} heads of width {model.width_of_head}{shared}{''.join(f', {extra}' for extra in extras)}"


def symbols(recipe: TextRecipe) -> str:
    """Describe the vocabulary."""
    tokenizer, sizes = recipe.tokenizer, [getattr(recipe.model, name) for name in recipe.model.VOCABULARIES]
    case = ", lower case" if tokenizer.lowercase else ""
    if not isinstance(recipe, TranslationRecipe):
        return f"{tokenizer.kind} symbols{'' if None in sizes else f' ({whole(sizes[0])})'}{case}"
    both = "one vocabulary for both sides" if recipe.tokenizer.joint else "a vocabulary for each side"
    if None in sizes:
        return f"{tokenizer.kind} symbols, {both}{case}"
    counts = whole(sizes[0]) if recipe.tokenizer.joint else f"{whole(sizes[0])} and {whole(sizes[1])}"
    return f"{tokenizer.kind} symbols, {both} ({counts} symbols){case}"


_ANSWERS = {
    "translation": ("translate {run} --input source.txt --output translations.txt", 'translate(["A sentence in the source language."])'),
    "language": ('generate {run} "The beginning of a text"', 'generate(["The beginning of a text"])'),
    "masked": ('fill {run} "A text with a [MASK] in it"', 'fill(["A text with a [MASK] in it"])'),
    "embedding": ('embed {run} "A text" "Another text"', 'embed(["A text", "Another text"])'),
    "image-classification": ("classify {run} image.jpg", 'classify(["image.jpg"])'),
    "classification": ('classify {run} "A text"', 'classify(["A text"])'),
}
"""By task: what follows ``transom``, and the method of what ``transom.load`` gives."""


def use(recipe: Recipe, name: str) -> tuple[str, str]:
    """Give the command and the lines of Python that answer with a run's model."""
    verb, method = _ANSWERS[recipe.task]
    return f"transom {verb.format(run=shlex.quote(name))}", f"import transom\n\ntransom.load({name!r}).{method}"


def files(part: object) -> list[str]:
    """Name the files of a part of the data."""
    match part:
        case PairFiles():
            return [name for name in (part.source, part.target, part.pairs) if name]
        case TextFiles():
            span = [f"{part.start:g} to {part.end:g} of it"] if (part.start, part.end) != (0.0, 1.0) else []
            return [*([part.files] if isinstance(part.files, str) else part.files), *span]
        case LabelledFiles():
            return [part.file]
        case ImageFiles():
            return [part.images]
        case _:
            return []


def split_off(recipe: Recipe) -> str:
    """Say what is taken for validation where no data are named."""
    if isinstance(recipe, ImageRecipe):
        return f"{100 * recipe.data.valid_share:g} % of the training images, split off by hash"
    return {
        "translation": _OF_PAIRS,
        "language": _OF_TEXT,
        "masked": _OF_TEXT,
        "classification": "10 % of the training texts, split off by hash",
        "embedding": _OF_PAIRS,
    }[recipe.task]


_OF_PAIRS = "1 % of the training pairs, split off by hash"
_OF_TEXT = "5 % of the documents, split off by hash, or the last 5 % of a single one"


def _convolutions(n: int) -> str:
    return f"{n} convolution{'' if n == 1 else 's'}"


def _layers(n: int) -> str:
    return f"{n} layer{'' if n == 1 else 's'}"
