"""FLOPs of a model: 2 per multiply-add, matrix products only."""

from dataclasses import dataclass
from functools import lru_cache

from transom.config.architecture import Architecture, Transformer
from transom.config.model import Decoder, Encoder, MaskedEncoder, Seq2Seq, TextClassifier
from transom.config.recurrent import RecurrentDecoder, RecurrentSeq2Seq
from transom.config.vision import ConvolutionalNetwork, ImageClassifier, VisionTransformer
from transom.layers.masks.rule import LOOKING_BACK, SAME_SEGMENT, Places, Rule, build_rules
from transom.layers.masks.visible_tiles import visible_tiles
from transom.layers.vision.grid import image_places, image_rules
from transom.planning.approximations import approximate
from transom.planning.parameters import feed_forward_weights, weights

OF_FROZEN_MAPS = 2 / 3
"""Fraction of the training FLOPs that remain with frozen weights, whose weight gradients are not computed. The few FLOPs of the adapters,
and of the scores, which need both gradients, are not treated separately."""


@dataclass(frozen=True)
class Flops:
    """Floating-point operations of one forward pass over a batch, by part of the model."""

    parts: dict[str, int]

    @property
    def forward(self) -> int:
        """FLOPs of one forward pass."""
        return sum(self.parts.values())

    @property
    def training(self) -> int:
        """FLOPs of one forward and backward pass: each forward product has two backward products, for its input and its weights."""
        return 3 * self.forward


def count_flops(config: Architecture, batch: int, source: int, target: int) -> Flops:
    """Count the FLOPs of a forward pass with teacher forcing.

    A weight matrix costs 2 FLOPs per weight and token. Attention scores and weighted values cost 2 h (d_k + d_v) per computed pair of
    query and key: all pairs, causal or not, or the pairs of the visible tiles for long sequences with sparse patterns
    (``kernels/block_sparse.py``). Approximations are counted in ``planning/approximations.py``. Softmax, norms and other elementwise
    work are not counted.

    Args:
        config: model configuration.
        batch: sequences.
        source: source tokens per sequence: the padded length for executed work, the mean length for useful work; 0 without a source.
            For images ``n_positions``, or 0 for a convolutional network.
        target: target tokens per sequence, likewise. For an encoder alone, the positions per sequence with logits: masked tokens, or
            1 for a class.
    """
    c, n_source, n_target, parts = config, batch * source, batch * target, dict[str, int]()
    feed_forward = 2 * feed_forward_weights(c) if isinstance(c, Transformer) else 0
    if isinstance(c, ImageClassifier):
        parts["stem"] = 2 * batch * c.stem.products(c.channels, c.image_size)
    if isinstance(c, VisionTransformer):
        parts["patches"] = 2 * batch * c.grid**2 * c.patch_width * c.d_model
    if isinstance(c, ConvolutionalNetwork):
        parts["pooler"] = 2 * batch * c.maps[-1] * c.d_model
    if isinstance(c, Seq2Seq | Encoder | VisionTransformer):
        n_layers = c.n_encoder_layers if isinstance(c, Seq2Seq) else c.n_layers
        parts["encoder.attn"] = _self_attention(c, n_layers, batch, source, SAME_SEGMENT)
        parts["encoder.ff"] = batch * feed_forward * sum(_passing(c, n_layers, source))
        parts["encoder.depth"] = _routers(c, n_layers, n_source)
    if isinstance(c, Seq2Seq | Decoder):
        n_layers = c.n_decoder_layers if isinstance(c, Seq2Seq) else c.n_layers
        if isinstance(c, Seq2Seq):
            passing = _passing(c, n_layers, target)
            parts["decoder.cross"] = sum(_projections(c, batch * n, n_source) + _across(c, batch, n, source) for n in passing)
        parts["decoder.attn"] = _self_attention(c, n_layers, batch, target, LOOKING_BACK)
        parts["decoder.ff"] = batch * feed_forward * sum(_passing(c, n_layers, target))
        parts["decoder.depth"] = _routers(c, n_layers, n_target)
    if isinstance(c, RecurrentSeq2Seq):
        parts |= _recurrent(c, batch, source, target)
    if isinstance(c, RecurrentDecoder):
        parts["decoder.layers"] = 2 * n_target * weights(c, "decoder.layers")
    if isinstance(c, MaskedEncoder):
        parts["transform"] = 2 * c.d_model**2 * n_source
    if isinstance(c, TextClassifier):
        parts["pooler"] = 2 * c.d_model**2 * n_target
    parts["unembedding"] = 2 * c.d_model * c.n_logits * n_target
    return Flops(parts)


def _self_attention(c: Transformer, n_layers: int, batch: int, length: int, family: Rule) -> int:
    """Count all layers of a stack, each with its pattern; with mixture-of-depths, masks are dense and all pairs are counted."""
    passing = _passing(c, n_layers, length)
    projections = sum(_projections(c, batch * n, batch * n) for n in passing)
    if c.attention.approximation.kind != "none":
        return projections + n_layers * approximate(c, batch, length, length, family == LOOKING_BACK)
    image = c if isinstance(c, VisionTransformer) else None
    rules = build_rules(c.attention, family) if image is None else image_rules(image)
    pairs = [_pairs(rules[i % len(rules)], n, image) if c.depth.kind == "full" else n**2 for i, n in enumerate(passing)]
    return projections + _of_pairs(c, batch * sum(pairs))


def _passing(c: Transformer, n_layers: int, length: int) -> list[int]:
    """Return the tokens per sequence that each layer of a stack processes in training."""
    return [c.depth.n_chosen(length) if c.depth.routed(i) else length for i in range(n_layers)]


def _routers(c: Transformer, n_layers: int, n_tokens: int) -> int:
    """Count the router scores of all tokens before each routed layer."""
    return 2 * c.d_model * n_tokens * sum(c.depth.routed(i) for i in range(n_layers))


def _across(c: Transformer, batch: int, target: int, source: int) -> int:
    """Count the cross-attention of one layer without projections: every target token attends to all of its source."""
    if c.attention.approximation.kind != "none":
        return approximate(c, batch, target, source, causal=False)
    return _of_pairs(c, batch * target * source)


def _projections(c: Transformer, n_queries: int, n_keys: int) -> int:
    """Count the query, key, value and output projections."""
    output = c.n_heads * c.width_of_value if c.attention.output else 0
    of_keys = c.key_heads * (c.width_of_head + c.width_of_value)
    return 2 * c.d_model * (n_queries * (c.n_heads * c.width_of_head + output) + n_keys * of_keys)


def _of_pairs(c: Transformer, pairs: int) -> int:
    """Count the scores and weighted values of query-key pairs."""
    return 2 * c.n_heads * (c.width_of_head + c.width_of_value) * pairs


def _recurrent(c: RecurrentSeq2Seq, batch: int, source: int, target: int) -> dict[str, int]:
    """Count both recurrences, the decoder's initial state, and its attention over the source."""
    n_source, n_target = batch * source, batch * target
    asked, answered = weights(c, "decoder.cross.q", "decoder.maxout", "decoder.joined"), weights(c, "decoder.cross.k")
    pairs = n_target * source * (c.attention.width(c.d_model) + c.d_model) if c.attention.kind != "none" else 0
    return {
        "encoder.layers": 2 * n_source * weights(c, "encoder.layers"),
        "decoder.start": 2 * batch * weights(c, "decoder.start"),
        "decoder.layers": 2 * n_target * weights(c, "decoder.layers"),
        "decoder.cross": 2 * (n_target * asked + n_source * answered + pairs),
    }


@lru_cache(maxsize=256)
def _pairs(rule: Rule, length: int, image: VisionTransformer | None = None) -> int:
    """Count the computed query-key pairs of one sequence or image."""
    places = Places.of_text(length) if image is None or not length else image_places(image)
    tiles = visible_tiles(rule, places, places)
    return length**2 if tiles is None else tiles.pairs
