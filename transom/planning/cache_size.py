"""Bytes of the cache of incremental decoding, per token and per row, as ``layers/cache.py`` allocates it."""

from dataclasses import dataclass

from transom.config.approximations import PerformerConfig
from transom.config.architecture import ModelConfig, TransformerConfig
from transom.config.model import DecoderConfig, Seq2SeqConfig
from transom.config.patterns import block_patterns


@dataclass(frozen=True)
class CacheSize:
    """Memory of the cache of one row of generation, in bytes.

    Attributes:
        per_token: keys and values of one generated token, in all blocks.
        per_source_token: projected keys and values of one source token, in all blocks; 0 without an encoder.
        fixed: state that does not grow with the text: the sums of linear attention.
        multi_head: ``per_token`` if every query head had its own keys and values.
        grouped: ``per_token`` with the model's number of key-value heads.
        multi_query: ``per_token`` if all query heads shared one head of keys and values.
        window: number of last tokens that the widest pattern can see; None if a block sees all. The cache keeps every token nevertheless.
    """

    per_token: int
    per_source_token: int
    fixed: int
    multi_head: int
    grouped: int
    multi_query: int
    window: int | None

    def of_row(self, length: int, source: int = 0) -> int:
        """Return the bytes for a row of ``length`` generated tokens and ``source`` source tokens."""
        return self.fixed + length * self.per_token + source * self.per_source_token

    def windowed(self, length: int) -> int:
        """Return the bytes that a row needs at least: a cache that forgets what no pattern can see."""
        return self.fixed + min(length, self.window or length) * self.per_token


def cache_size(config: ModelConfig, element_size: int) -> CacheSize | None:
    """Compute the size of the cache; None for models that do not generate text with attention.

    A block caches n_kv_heads (d_k + d_v) numbers per token. Mixture of depths caches a slot for every token and one flag.

    Args:
        config: model configuration.
        element_size: bytes per number: 2 in bfloat16, 4 in float32.
    """
    if not isinstance(config, DecoderConfig | Seq2SeqConfig):
        return None
    n_layers = config.n_decoder_layers if isinstance(config, Seq2SeqConfig) else config.n_layers
    config = config.of_stack("decoder")
    numbers, linear = config.d_head + config.d_value, config.attention.approximation.kind != "none"
    one_head = n_layers * numbers * element_size
    flags = sum(config.depth.routed(i) for i in range(n_layers))
    states = n_layers * _linear_state(config) * max(element_size, 4)
    source = config.n_kv_heads * one_head if isinstance(config, Seq2SeqConfig) and not linear else 0
    heads = 0 if linear else 1
    return CacheSize(
        per_token=heads * (config.n_kv_heads * one_head + flags),
        per_source_token=source,
        fixed=states * (2 if isinstance(config, Seq2SeqConfig) else 1) if linear else 0,
        multi_head=heads * (config.n_heads * one_head + flags),
        grouped=heads * (config.n_kv_heads * one_head + flags),
        multi_query=heads * (one_head + flags),
        window=_window(config),
    )


def _linear_state(config: TransformerConfig) -> int:
    """Return the numbers of one block's linear-attention state per row: n_kv_heads features (d_v + 1)."""
    approximation = config.attention.approximation
    features = approximation.n_features if isinstance(approximation, PerformerConfig) else config.d_head
    return config.n_kv_heads * features * (config.d_value + 1)


def _window(config: TransformerConfig) -> int | None:
    """Return the largest window of all blocks; None if the pattern of one is not a window."""
    sizes = [getattr(pattern, "size", None) if pattern.kind == "window" else None for pattern in block_patterns(config.attention.pattern)]
    return None if None in sizes or not sizes else max(size for size in sizes if size is not None)
