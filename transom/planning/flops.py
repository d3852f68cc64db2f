"""How much arithmetic a model does: 2 operations a multiply-add, matrix products only."""

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
"""Part of a training's operations that is left where maps are frozen: those for their gradients are not made. The few of what is adapted
and those of scores, whose two sides both have gradients, are not told apart."""


@dataclass(frozen=True)
class Flops:
    """Floating-point operations of one pass forward over a batch, by the part of the model that does them."""

    parts: dict[str, int]

    @property
    def forward(self) -> int:
        """One pass forward."""
        return sum(self.parts.values())

    @property
    def training(self) -> int:
        """One pass forward and back: every product forward has two backward, for its input and for its weights."""
        return 3 * self.forward


def count_flops(config: Architecture, batch: int, source: int, target: int) -> Flops:
    """Count the operations of teacher forcing.

    A weight matrix costs 2 operations a weight and token. Attention scores and weighted values cost 2 h (d_k + d_v) a pair of query and
    key that is computed: of the whole square, causal or not, or, where rows are long and patterns sparse, of the visible tiles
    (``kernels/block_sparse.py``); an approximation has costs of its own (``planning/approximations.py``). Softmax, norms and other work
    per element are left out.

    Args:
        config: the model.
        batch: rows.
        source: tokens a row on the source side: padded for the machine's work, the mean length for the useful work; 0 where there is none.
        target: tokens a row on the target side, likewise; of an encoder alone, places a row that logits are taken of: masked tokens, or
            1 for a class. Of images, ``source`` is ``n_positions``, and 0 where there are none.
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
    """All layers of a stack, each with its pattern; masks are written out where only chosen tokens pass some of the layers."""
    passing = _passing(c, n_layers, length)
    projections = sum(_projections(c, batch * n, batch * n) for n in passing)
    if c.attention.approximation.kind != "none":
        return projections + n_layers * approximate(c, batch, length, length, family == LOOKING_BACK)
    image = c if isinstance(c, VisionTransformer) else None
    rules = build_rules(c.attention, family) if image is None else image_rules(image)
    pairs = [_pairs(rules[i % len(rules)], n, image) if c.depth.kind == "full" else n**2 for i, n in enumerate(passing)]
    return projections + _of_pairs(c, batch * sum(pairs))


def _passing(c: Transformer, n_layers: int, length: int) -> list[int]:
    """Count the tokens of a sequence that pass each layer of a stack in training."""
    return [c.depth.n_chosen(length) if c.depth.routed(i) else length for i in range(n_layers)]


def _routers(c: Transformer, n_layers: int, n_tokens: int) -> int:
    """The scores of all tokens in front of each layer that only chosen ones pass."""
    return 2 * c.d_model * n_tokens * sum(c.depth.routed(i) for i in range(n_layers))


def _across(c: Transformer, batch: int, target: int, source: int) -> int:
    """What every target token gathers of all of its source, in one layer."""
    if c.attention.approximation.kind != "none":
        return approximate(c, batch, target, source, causal=False)
    return _of_pairs(c, batch * target * source)


def _projections(c: Transformer, n_queries: int, n_keys: int) -> int:
    """Projections of all queries and keys, and the output map."""
    output = c.n_heads * c.width_of_value if c.attention.output else 0
    of_keys = c.key_heads * (c.width_of_head + c.width_of_value)
    return 2 * c.d_model * (n_queries * (c.n_heads * c.width_of_head + output) + n_keys * of_keys)


def _of_pairs(c: Transformer, pairs: int) -> int:
    """Scores and weighted values of pairs."""
    return 2 * c.n_heads * (c.width_of_head + c.width_of_value) * pairs


def _recurrent(c: RecurrentSeq2Seq, batch: int, source: int, target: int) -> dict[str, int]:
    """Both recurrences, the decoder's start, and what its attention compares and gathers."""
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
    """Count the pairs of a query and a key of one sequence, or of one image, that are computed."""
    places = Places.of_text(length) if image is None or not length else image_places(image)
    tiles = visible_tiles(rule, places, places)
    return length**2 if tiles is None else tiles.pairs
