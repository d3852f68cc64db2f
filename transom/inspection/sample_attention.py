"""Attention of a model over one sample of its validation data, as the training report shows it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from transom.config.architecture import TransformerConfig
from transom.config.recurrent import RecurrentConfig
from transom.config.vision import VisionTransformerConfig
from transom.data.tokenizer.tokenizer import Tokenizer, Tokenizers
from transom.decoding.inference import eval_mode
from transom.inspection.activations import Activations, autocast_as
from transom.inspection.alignment import choose_alignment_layer, cross_attention_addresses
from transom.inspection.certify import certify
from transom.inspection.lenses.rollout import AttentionGraph, patch_shares
from transom.inspection.whole_maps import attention_addresses, is_idle, whole_map
from transom.layers.approximations.approximate_attention import ApproximateAttention
from transom.layers.observe import ActivationRecorder
from transom.models.base import LanguageModel, Network, Seq2SeqModel, SequencesLike
from transom.models.inputs import TensorBatch, TokenSequences

MAX_TOKENS = 24
"""Largest number of tokens of a sample: a longer one is cut, and the model reads what is left."""

WANTED_TOKENS = 12
"""Among the validation samples the one is chosen whose number of tokens is closest to this."""

MAX_BATCHES = 50
"""Validation batches among which the sample is chosen."""


@dataclass(frozen=True)
class NoAttention:
    """A model whose attention cannot be shown.

    Attributes:
        reason: why: the network is "convolutional" or "recurrent", its layers have "unknown" weights, or all samples are too "short".
    """

    reason: Literal["convolutional", "recurrent", "unknown", "short"]


@dataclass(frozen=True)
class TextAttention:
    """Attention of one layer over a text or a sentence pair.

    Attributes:
        address: address of the layer.
        weights: its attention weights; 0 for tokens that skip its block.
        queries: tokens of the rows.
        keys: tokens of the columns.
        n_tokens: number of tokens of the sample, source and target together for a pair.
        n_read: number of its tokens that the model read.
        error: largest error of certified weights in all layers, as a multiple of the bound of rounding.
        n_maps: number of maps that were compared.
        approximation: kind of the approximation of attention whose implied weights are shown; empty for exact attention.
        shares: rollout: share of each token in the vector that the model classifies or returns; None for models with a vector per token.
        no_shares: whether a model with such a vector has no shares, since an approximation implies negative weights.
    """

    address: str
    weights: Float[Tensor, "heads query key"]
    queries: Sequence[str]
    keys: Sequence[str]
    n_tokens: int
    n_read: int
    error: float
    n_maps: int
    approximation: str = ""
    shares: Float[Tensor, "key"] | None = None
    no_shares: bool = False


class SamplePicture(NamedTuple):
    """An image, or a sound as its spectrogram, for display.

    Attributes:
        url: the picture as a data URL.
        noun: what it is.
        from_bottom: whether the first row of patches is at the bottom of the picture.
    """

    url: str
    noun: Literal["image", "sound"]
    from_bottom: bool = False


@dataclass(frozen=True)
class PatchAttention:
    """Attention over the patches of an image or a spectrogram.

    Attributes:
        address: address of the last layer.
        weights: attention weights of its heads from the class token, or the mean over all patches, to each patch.
        shares: rollout: share of each patch in the vector that is classified; None if there is none.
        no_shares: whether there is none, since an approximation implies negative weights.
        picture: the sample.
        from_class_token: whether the weights are those of the class token.
        error: as for ``TextAttention``.
        n_maps: as for ``TextAttention``.
    """

    address: str
    weights: Float[Tensor, "heads rows columns"]
    shares: Float[Tensor, "rows columns"] | None
    no_shares: bool
    picture: SamplePicture
    from_class_token: bool
    error: float
    n_maps: int


def patch_attention(model: Network, batch: Any, picture: SamplePicture) -> PatchAttention | NoAttention:
    """Trace the attention of a Vision Transformer over one image.

    Args:
        model: the model; another one has no attention.
        batch: a batch of one image.
        picture: the image for display.
    """
    config = model.config
    if not isinstance(config, VisionTransformerConfig):
        return NoAttention("convolutional")
    a, error, n_maps = _certified(model, batch)
    address = _last_layer(a)
    is_cls = config.pooling == "cls"
    weights = whole_map(a, address)[0].float().cpu()
    of_patches = weights[:, 0, config.n_class_tokens :] if is_cls else weights.mean(1)
    graph = _encoder_graph(a)
    shares = None if graph is None else patch_shares(config, graph.rollout())[0].float()
    heads = of_patches.unflatten(-1, (config.grid, config.grid))
    return PatchAttention(address, heads, shares, graph is None, picture, is_cls, error, n_maps)


def text_attention(model: Network, batches: Iterable[Any], tokenizers: Tokenizers) -> TextAttention | NoAttention:
    """Choose a validation sample, and trace the attention of a model over it, in the precision of the weights.

    Shown is the cross-attention of a translator, in the layer that is closest to a one-to-one alignment, and otherwise the self-attention
    of the last block that processes all tokens.

    Args:
        model: a model of texts.
        batches: validation batches.
        tokenizers: tokenizers of the sides.
    """
    config = model.config
    if not attention_addresses(model):
        return NoAttention("recurrent" if isinstance(config, RecurrentConfig) else "unknown")
    sample = choose_sample(model, islice(batches, MAX_BATCHES))
    if sample is None:
        return NoAttention("short")
    batch, n_tokens, n_read = sample
    a, error, n_maps = _certified(model, batch)
    pairs = cross_attention_addresses(model) if isinstance(model, Seq2SeqModel) else []
    if pairs:
        maps = torch.stack([whole_map(a, each)[0].float().cpu() for each in pairs])
        address = pairs[choose_alignment_layer(maps)]
        weights = maps[pairs.index(address)]
    else:
        address = _last_layer(a)
        weights = whole_map(a, address)[0].float().cpu()
    assert batch.source is not None and batch.decoder_input is not None
    keys = _symbols(tokenizers.source, batch.source)  # of a single text, both sides are the same
    queries = _symbols(tokenizers.target, batch.decoder_input) if pairs else keys
    shares, no_shares = _pooled_shares(a)
    approximation, layer = "", a.module(address)
    if isinstance(config, TransformerConfig) and isinstance(layer, ApproximateAttention):
        approximation = config.attention.approximation.kind
    return TextAttention(address, weights, queries, keys, n_tokens, n_read, error, n_maps, approximation, shares, no_shares)


def _symbols(tokenizer: Tokenizer, text: SequencesLike) -> list[str]:
    """Return the symbols of the first row, with an arrow for a line break."""
    return [symbol.replace("\n", "↵") for symbol in tokenizer.symbols(text.tokens[0].tolist())]


def _certified(model: Network, batch: Any) -> tuple[Activations, float, int]:
    """Run a model; return its activations, the largest error of certified weights as a multiple of its bound, and the number of maps.

    All sites of the short sample are kept, so that no names have to be looked up, which takes longer than the pass.
    """
    recorder = ActivationRecorder(["*"])
    with torch.no_grad(), eval_mode(model), autocast_as(model, None):
        logits = model(batch, recorder)
    a = Activations(model, batch, recorder.activations | {"logits": logits})
    a.autocast = None
    found = [certify(a, path) for path in attention_addresses(model) if not is_idle(a, path)]
    return a, max((each.ratio for each in found), default=0.0), sum(each.n_maps for each in found)


def _last_layer(a: Activations) -> str:
    """Return the last layer of self-attention, if possible of a block that no token skips."""
    paths = [path for path in attention_addresses(a.model) if path.endswith(".attn")]
    of_all = [path for path in paths if getattr(a.module(path.rpartition(".")[0]), "depth", None) is None]
    return (of_all or paths)[-1]


def _encoder_graph(a: Activations) -> AttentionGraph | None:
    """Return the graph of the attention of an encoder; None if an approximation implies negative weights."""
    if any(bool((whole_map(a, path) < 0).any()) for path in attention_addresses(a.model)):
        return None
    return AttentionGraph.of_activations(a, ["encoder"])


def _pooled_shares(a: Activations) -> tuple[Float[Tensor, "key"] | None, bool]:
    """Return the rollout to the vector that an encoder pools from its tokens, and whether it has such a vector, but no rollout."""
    pooling = getattr(a.model.config, "pooling", None)
    if pooling is None:
        return None, False
    if (graph := _encoder_graph(a)) is None:
        return None, True
    shares = graph.rollout().source
    assert shares is not None, "an encoder reads the source"
    return (shares[0, 0] if pooling == "cls" else shares[0].mean(0)).float(), False


class Sample(NamedTuple):
    """One row of a batch, without padding.

    Attributes:
        batch: a batch of this row, at most ``MAX_TOKENS`` tokens per side.
        n_tokens: number of tokens of the row, of source and target together for a pair.
        n_read: number of tokens of ``batch``.
    """

    batch: TensorBatch
    n_tokens: int
    n_read: int


def choose_sample(model: Network, batches: Iterable[Any]) -> Sample | None:
    """Return the validation sample whose length is closest to ``WANTED_TOKENS``; None if none has two tokens.

    Of a row with several texts the first is read.

    Args:
        model: the model, which decides the side of a batch that is read.
        batches: validation batches.
    """
    side = "decoder_input" if isinstance(model, LanguageModel) else "source"
    best: tuple[int, Any, int] | None = None
    for batch in batches:
        lengths = (getattr(batch, side).segments == 1).sum(1)
        distances = (lengths - WANTED_TOKENS).abs() + (lengths < 2) * 10**6
        row = int(distances.argmin())
        if int(lengths[row]) > 1 and (best is None or int(distances[row]) < best[0]):
            best = int(distances[row]), batch, row
    if best is None:
        return None
    _, batch, row = best
    names = ("source", "decoder_input") if isinstance(model, Seq2SeqModel) else (side,)
    whole = [getattr(batch, name) for name in names]
    read = [first_text(each, row, model.device, MAX_TOKENS) for each in whole]
    n_tokens = sum(int((each.segments[row] == 1).sum()) for each in whole)
    return Sample(TensorBatch(read[0], read[-1]), n_tokens, sum(each.tokens.shape[1] for each in read))


def first_text(text: SequencesLike, row: int, device: torch.device, most: int | None = None) -> TokenSequences:
    """Return the first text of a row without padding, or its first tokens if it has more than ``most``."""
    keep = (text.segments[row] == 1).nonzero()[:most, 0]
    positions = text.positions.expand(text.tokens.shape)
    prefix, types = (None if x is None else x[row, keep][None].to(device) for x in (text.prefix, text.token_types))
    tokens, places, segments = (x[row, keep][None].to(device) for x in (text.tokens, positions, text.segments))
    return TokenSequences(tokens, places, segments, prefix, text.text_length, types)
