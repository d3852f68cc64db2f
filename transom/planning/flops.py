"""FLOPs of a model: 2 per multiply-add, matrix products only."""

from dataclasses import dataclass
from functools import lru_cache

from transom.config.architecture import ModelConfig, TransformerConfig
from transom.config.model import DecoderConfig, EncoderConfig, MaskedLMConfig, Seq2SeqConfig, TextClassifierConfig, TextEmbedderConfig
from transom.config.recurrent import RecurrentDecoderConfig, RecurrentSeq2SeqConfig
from transom.config.vision import ConvolutionalNetworkConfig, ImageClassifierConfig, VisionTransformerConfig
from transom.layers.masks.block_sparse_mask import build_block_sparse_mask
from transom.layers.masks.mask_rules import CAUSAL_IN_SEGMENT, SAME_SEGMENT, MaskRule, TokenPositions, build_mask_rules
from transom.layers.vision.vision_mask import image_mask_rules, image_positions
from transom.planning.approximations import approximate_attention_flops
from transom.planning.parameters import count_feed_forward_weights, count_weights

FROZEN_WEIGHTS_FACTOR = 2 / 3
"""Fraction of the training FLOPs that remain if the weights are frozen, so that no weight gradients are computed. The FLOPs of adapters and
of attention scores, which need all gradients, are few and not treated separately."""


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


def count_flops(config: ModelConfig, batch: int, source: int, target: int) -> Flops:
    """Count the FLOPs of a forward pass with teacher forcing.

    A weight matrix costs 2 FLOPs per weight and token. Attention scores and weighted values cost 2 h (d_k + d_v) per computed pair of
    query and key: all pairs, causal or not, or the pairs of the visible tiles for long sequences with sparse patterns
    (``kernels/block_sparse.py``). Approximations are counted in ``planning/approximations.py``. Softmax, norms and other elementwise
    work are not counted.

    Args:
        config: model configuration.
        batch: number of sequences.
        source: source tokens per sequence: the padded length to count executed FLOPs, the mean length to count useful ones; 0 without a
            source. For images, ``n_positions``, or 0 for a convolutional network.
        target: target tokens per sequence, padded or mean length likewise. For an encoder without decoder, the number of logits vectors
            per sequence: one per masked token, or one for a class.
    """
    c, n_source, n_target, parts = config, batch * source, batch * target, dict[str, int]()
    if isinstance(c, ImageClassifierConfig):
        parts["stem"] = 2 * batch * c.stem.products(c.channels, c.image_size)
    if isinstance(c, VisionTransformerConfig):
        parts["patches"] = 2 * batch * c.grid**2 * c.patch_width * c.d_model
    if isinstance(c, ConvolutionalNetworkConfig):
        parts["pooler"] = 2 * batch * c.maps[-1] * c.d_model
    if isinstance(c, Seq2SeqConfig | EncoderConfig | VisionTransformerConfig):
        n_layers = c.n_encoder_layers if isinstance(c, Seq2SeqConfig) else c.n_layers
        parts["encoder.attn"] = _self_attention_flops(c, n_layers, batch, source, SAME_SEGMENT)
        parts["encoder.ff"] = _feed_forward_flops(c, "encoder", n_layers, batch, source)
        parts["encoder.depth"] = _router_flops(c, n_layers, n_source)
    if isinstance(c, Seq2SeqConfig | DecoderConfig):
        n_layers, d = c.n_decoder_layers if isinstance(c, Seq2SeqConfig) else c.n_layers, c.of_stack("decoder")
        if isinstance(c, Seq2SeqConfig):
            tokens_per_layer = _tokens_per_layer(c, n_layers, target)
            parts["decoder.cross"] = sum(
                _projection_flops(d, batch * n, n_source) + _cross_attention_flops(d, batch, n, source) for n in tokens_per_layer
            )
        parts["decoder.attn"] = _self_attention_flops(d, n_layers, batch, target, CAUSAL_IN_SEGMENT)
        parts["decoder.ff"] = _feed_forward_flops(c, "decoder", n_layers, batch, target)
        parts["decoder.depth"] = _router_flops(c, n_layers, n_target)
    if isinstance(c, RecurrentSeq2SeqConfig):
        parts |= _recurrent_flops(c, batch, source, target)
    if isinstance(c, RecurrentDecoderConfig):
        parts["decoder.layers"] = 2 * n_target * count_weights(c, "decoder.layers")
    if isinstance(c, MaskedLMConfig):
        parts["transform"] = 2 * c.d_model**2 * n_source
    if isinstance(c, TextClassifierConfig) and c.pooler:
        parts["pooler"] = 2 * c.d_model**2 * n_target
    n_pooled = c.n_pooled if isinstance(c, VisionTransformerConfig) else 1
    parts["unembedding"] = 2 * n_pooled * c.d_model * c.n_logits * n_target
    return Flops(parts)


def list_passes(config: ModelConfig, rows: int, source: int, target: int) -> list[tuple[int, int, int]]:
    """Return the arguments of ``count_flops`` of each pass through the model that a batch takes, with logits at all positions.

    Args:
        config: model configuration.
        rows: rows of the batch.
        source: length of the source rows, or of the first texts of an embedder; 0 without them.
        target: length of the target rows, or of the second texts of an embedder; 0 without them.
    """
    if isinstance(config, ImageClassifierConfig):
        return [(rows, config.n_positions if isinstance(config, VisionTransformerConfig) else 0, 1)]
    if isinstance(config, TextEmbedderConfig):
        return [(rows, length, 0) for length in (source, target)]
    if isinstance(config, EncoderConfig):
        return [(rows, source, 1 if isinstance(config, TextClassifierConfig) else source)]
    return [(rows, source, target)]


def count_pair_flops(config: ModelConfig, batch: int, source: int, target: int) -> int:
    """Count the FLOPs of attention scores and weighted values, or of what approximates them, of a forward pass: all but the weights.

    Args:
        config: model configuration.
        batch: number of sequences.
        source: source tokens per sequence, as for ``count_flops``.
        target: target tokens per sequence, as for ``count_flops``.
    """
    if not isinstance(config, TransformerConfig):
        return 0
    c, parts, weights = config, count_flops(config, batch, source, target).parts, 0
    for stack, length in (("encoder", source), ("decoder", target)):
        if f"{stack}.attn" in parts:
            n_layers = getattr(c, f"n_{stack}_layers", 0) or c.stacks[0]
            tokens, own = [batch * n for n in _tokens_per_layer(c, n_layers, length)], c.of_stack(stack)
            weights += sum(_projection_flops(own, n, n) for n in tokens)
            weights += (
                sum(_projection_flops(own, n, batch * source) for n in tokens) if "decoder.cross" in parts and stack == "decoder" else 0
            )
    return sum(parts.get(name, 0) for name in ("encoder.attn", "decoder.attn", "decoder.cross")) - weights


def _feed_forward_flops(c: TransformerConfig, stack: str, n_layers: int, batch: int, length: int) -> int:
    """Count the FLOPs of the feed-forward networks of a stack, each on the tokens that its layer processes."""
    return 2 * batch * count_feed_forward_weights(c, stack) // n_layers * sum(_tokens_per_layer(c, n_layers, length))


def _self_attention_flops(c: TransformerConfig, n_layers: int, batch: int, length: int, base_rule: MaskRule) -> int:
    """Count the self-attention FLOPs of a stack, each layer with its pattern; mixture of depths has dense masks, so all pairs count."""
    tokens_per_layer = _tokens_per_layer(c, n_layers, length)
    projections = sum(_projection_flops(c, batch * n, batch * n) for n in tokens_per_layer)
    if c.attention.approximation.kind != "none":
        return projections + n_layers * approximate_attention_flops(c, batch, length, length, base_rule == CAUSAL_IN_SEGMENT)
    vision_config = c if isinstance(c, VisionTransformerConfig) else None
    rules = build_mask_rules(c.attention, base_rule) if vision_config is None else image_mask_rules(vision_config)
    pairs = [
        _count_pairs(rules[i % len(rules)], n, vision_config) if c.depth.kind == "full" else n**2 for i, n in enumerate(tokens_per_layer)
    ]
    return projections + _pair_flops(c, batch * sum(pairs))


def _tokens_per_layer(c: TransformerConfig, n_layers: int, length: int) -> list[int]:
    """Return the tokens per sequence that each layer of a stack processes in training."""
    return [c.depth.n_chosen(length) if c.depth.routed(i) else length for i in range(n_layers)]


def _router_flops(c: TransformerConfig, n_layers: int, n_tokens: int) -> int:
    """Count the FLOPs of the scores that depth routers compute for all tokens before each routed layer."""
    return 2 * c.d_model * n_tokens * sum(c.depth.routed(i) for i in range(n_layers))


def _cross_attention_flops(c: TransformerConfig, batch: int, target: int, source: int) -> int:
    """Count the cross-attention FLOPs of one layer without projections; every target token attends to all tokens of its source."""
    if c.attention.approximation.kind != "none":
        return approximate_attention_flops(c, batch, target, source, causal=False)
    return _pair_flops(c, batch * target * source)


def _projection_flops(c: TransformerConfig, n_queries: int, n_keys: int) -> int:
    """Count the FLOPs of the query, key, value and output projections of one layer."""
    output = c.n_heads * c.d_value if c.attention.output_projection else 0
    kv_width = c.n_kv_heads * (c.d_head + c.d_value)
    return 2 * c.d_model * (n_queries * (c.n_heads * c.d_head + output) + n_keys * kv_width)


def _pair_flops(c: TransformerConfig, pairs: int) -> int:
    """Count the FLOPs of attention scores and weighted values for a number of query-key pairs."""
    return 2 * c.n_heads * (c.d_head + c.d_value) * pairs


def _recurrent_flops(c: RecurrentSeq2SeqConfig, batch: int, source: int, target: int) -> dict[str, int]:
    """Count the FLOPs of a recurrent encoder-decoder: both recurrences, the decoder's initial state, and its attention to the source."""
    n_source, n_target = batch * source, batch * target
    query_weights, key_weights = (
        count_weights(c, "decoder.cross.q", "decoder.maxout", "decoder.output_proj"),
        count_weights(c, "decoder.cross.k"),
    )
    pairs = n_target * source * (c.attention.width(c.d_model) + c.d_model) if c.attention.kind != "none" else 0
    return {
        "encoder.layers": 2 * n_source * count_weights(c, "encoder.layers"),
        "decoder.bridge": 2 * batch * count_weights(c, "decoder.bridge"),
        "decoder.layers": 2 * n_target * count_weights(c, "decoder.layers"),
        "decoder.cross": 2 * (n_target * query_weights + n_source * key_weights + pairs),
    }


@lru_cache(maxsize=256)
def _count_pairs(rule: MaskRule, length: int, vision_config: VisionTransformerConfig | None = None) -> int:
    """Count the query-key pairs of one sequence or image whose scores are computed."""
    token_positions = TokenPositions.single_sequence(length) if vision_config is None or not length else image_positions(vision_config)
    block_mask = build_block_sparse_mask(rule, token_positions, token_positions)
    return length**2 if block_mask is None else block_mask.pairs
