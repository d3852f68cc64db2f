"""Count the parameters of a model by building the model on the meta device, where tensors have shapes but no memory."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import nn

from transom.config.architecture import ModelConfig, TransformerConfig
from transom.config.components import NoPositionConfig
from transom.config.depth import MixtureOfDepthsConfig
from transom.config.moe import MoeConfig
from transom.config.recurrent import RecurrentConfig
from transom.errors import ConfigError
from transom.files.limits import MIN_POSITION_TABLE_LIMIT
from transom.models.build import build_uninitialized


@dataclass(frozen=True)
class ParameterCount:
    """Number of parameters by part of the model; shared parameters are counted once.

    Attributes:
        parts: count by module path, all blocks of a stack together: "decoder.cross" is W_Q, W_K, W_V, W_O of every decoder block.
        inactive: number of parameters that one token does not use: those of experts to which the token is not routed.
    """

    parts: dict[str, int]
    inactive: int = 0

    @property
    def total(self) -> int:
        """Number of all parameters."""
        return sum(self.parts.values())

    @property
    def active(self) -> int:
        """Number of parameters that one token uses."""
        return self.total - self.inactive

    @property
    def embeddings(self) -> int:
        """Number of parameters of token and position embeddings, the output embedding included."""
        return sum(count for part, count in self.parts.items() if "embedding" in part)


def count_parameters(config: ModelConfig) -> ParameterCount:
    """Count the parameters of a model with known vocabulary sizes.

    With h d_k = h d_v = d_model an attention layer has 4 d_model^2 weights; a feed-forward layer has 2 d_model d_ff. Biases and norms
    are added to these.

    Raises:
        ConfigError: a matrix has more elements than PyTorch can count.
    """
    parts = dict[str, int]()
    sizes = sum_by_name(config, torch.numel)
    for name, size in sizes.items():
        parts[_part_of(name)] = parts.get(_part_of(name), 0) + size
    return ParameterCount(parts, _count_inactive(config, sizes))


def count_weights(config: ModelConfig, *names: str) -> int:
    """Count the weights of the linear maps whose parameter names, without indices, start with one of ``names``."""
    return sum(size for name, size in sum_by_name(config, _weight_count).items() if name.startswith(names))


def count_feed_forward_weights(config: TransformerConfig, stack: str) -> int:
    """Count the weights of the feed-forward networks of all blocks of a stack that multiply each token (active experts only)."""
    sizes = {name: size for name, size in sum_by_name(config, _weight_count).items() if name.startswith(f"{stack}.blocks.ff.")}
    return sum(sizes.values()) - _count_inactive(config, sizes)


def position_table_error(config: ModelConfig) -> str | None:
    """Return an error message if a computed (not learned) position table is too large for the model's size, otherwise None.

    The configuration alone determines the size of such a table, so a recipe of a few bytes could request gigabytes.
    """
    if not isinstance(config, TransformerConfig) or not config.position.COMPUTED:
        return None
    table, limit = config.position_table, max(MIN_POSITION_TABLE_LIMIT, count_parameters(config).total)
    if table <= limit:
        return None
    return (
        f"model.max_seq_len: expected a {config.position.kind} position table of at most {limit:,} numbers for a model of this size, found"
        f" {config.n_positions:,} positions and {table:,} numbers; lower model.max_seq_len, or set model.position to 'alibi' or 'relative'"
    )


@lru_cache(maxsize=64)
def sum_by_name(config: ModelConfig, measure: Callable[[torch.Tensor], int]) -> Mapping[str, int]:
    """Sum ``measure`` over all parameters whose names differ only in indices: ``decoder.blocks.attn.q.weight`` covers every block.

    A shared parameter is counted once, as an embedding rather than an output projection. Blocks and experts are identical, so only models
    with one and with two blocks or experts are built, and their difference is extrapolated.
    """
    if isinstance(config, TransformerConfig) and isinstance(config.depth, MixtureOfDepthsConfig) and (interval := config.depth.every) > 1:
        routed = sum_by_name(config.model_copy(update={"depth": config.depth.model_copy(update={"every": 1})}), measure)
        return {name: _routed_count(config, name, size, interval) for name, size in routed.items()}
    for smaller, larger, times in _smaller_configs(config):
        smaller_sums = sum_by_name(smaller, measure)
        return {
            name: smaller_sums.get(name, 0) + times * (size - smaller_sums.get(name, 0))
            for name, size in sum_by_name(larger, measure).items()
        }
    found = dict[str, int]()
    for name, parameter in _named_parameters(config):
        found[name] = found.get(name, 0) + measure(parameter)
    return found


@lru_cache(maxsize=64)
def count_shapes(config: ModelConfig) -> Mapping[tuple[str, tuple[int, ...]], int]:
    """Count the parameters of each name, as in ``sum_by_name``, and shape. All experts are built, since the shape of a router has them."""
    if isinstance(config, TransformerConfig) and isinstance(config.depth, MixtureOfDepthsConfig) and (interval := config.depth.every) > 1:
        routed = count_shapes(config.model_copy(update={"depth": config.depth.model_copy(update={"every": 1})}))
        return {key: _routed_count(config, key[0], count, interval) for key, count in routed.items()}
    for smaller, larger, times in _shallower_configs(config):
        few = count_shapes(smaller)
        return {key: few.get(key, 0) + times * (count - few.get(key, 0)) for key, count in count_shapes(larger).items()}
    found = dict[tuple[str, tuple[int, ...]], int]()
    for name, parameter in _named_parameters(config):
        key = name, tuple(parameter.shape)
        found[key] = found.get(key, 0) + 1
    return found


def _routed_count(config: TransformerConfig, name: str, count: int, interval: int) -> int:
    """Return a number of a parameter of all blocks as that of the blocks that a depth router belongs to."""
    n = getattr(config, f"n_{name.split('.')[0]}_layers", 0) or config.stacks[0]
    return count * (n // interval) // n if ".blocks.depth." in name else count


def _named_parameters(config: ModelConfig) -> Iterator[tuple[str, nn.Parameter]]:
    """Build the model on the meta device; yield each parameter with its name without indices.

    Raises:
        ConfigError: a matrix has more elements than PyTorch can count.
    """
    if isinstance(config, TransformerConfig) and config.position.COMPUTED:
        config = config.model_copy(update={"position": NoPositionConfig()})
    try:
        with torch.device("meta"):
            model = build_uninitialized(config)
    except (RuntimeError, TypeError) as error:
        if "overflow" not in str(error).lower():
            raise
        raise ConfigError(
            "model: expected matrices of fewer than 2^61 elements each, found a larger one; lower model.d_model or tokenizer.vocab_size"
        ) from None
    names = dict[nn.Parameter, str]()
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter not in names or not name.startswith("unembedding"):
            names[parameter] = re.sub(r"\.\d+(?=\.)", "", name)
    yield from ((name, parameter) for parameter, name in names.items())


def _smaller_configs(config: ModelConfig) -> Iterator[tuple[ModelConfig, ModelConfig, int]]:
    """Yield (configuration with one block or expert, configuration with two, number of blocks or experts in ``config`` minus 1)."""
    yield from _shallower_configs(config)
    if isinstance(config, TransformerConfig) and isinstance(config.feed_forward, MoeConfig) and (n := config.feed_forward.n_experts) > 2:
        feed_forwards = (config.feed_forward.model_copy(update={"n_experts": each}) for each in (1, 2))
        smaller, larger = (config.model_copy(update={"feed_forward": feed_forward}) for feed_forward in feed_forwards)
        yield smaller, larger, n - 1


def _shallower_configs(config: ModelConfig) -> Iterator[tuple[ModelConfig, ModelConfig, int]]:
    """Yield (configuration with one block, configuration with two, number of blocks in ``config`` minus 1)."""
    for field in ("n_encoder_layers", "n_decoder_layers", "n_layers") if isinstance(config, TransformerConfig | RecurrentConfig) else ():
        if (n := getattr(config, field, 0)) > 2:
            smaller, larger = (config.model_copy(update={field: each}) for each in (1, 2))
            yield smaller, larger, n - 1


def _count_inactive(config: ModelConfig, sizes: Mapping[str, int]) -> int:
    """Count the parameters of the experts to which a token is not routed."""
    if not isinstance(config, TransformerConfig) or not isinstance(config.feed_forward, MoeConfig):
        return 0
    n, top_k = config.feed_forward.n_experts, config.feed_forward.top_k
    return sum(size for name, size in sizes.items() if ".ff.experts." in name) * (n - top_k) // n


def _part_of(name: str) -> str:
    """Return the part of the model to which a parameter belongs.

    >>> _part_of("decoder.blocks.attn_residual.norm.weight"), _part_of("embedding.tokens.weight")
    ('decoder.norm', 'embedding')
    """
    first, second, *_ = name.replace(".blocks.", ".").split(".")
    if first in ("encoder", "decoder"):
        second = "norm" if second.endswith("_residual") else "cross" if second in ("maxout", "output_proj") else second
        return f"{first}.{second}"
    return "embedding.stem" if (first, second) == ("embedding", "stem") else first.removesuffix("_norm")


def _weight_count(parameter: torch.Tensor) -> int:
    return parameter.numel() if parameter.ndim > 1 else 0
