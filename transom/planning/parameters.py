"""Parameter counts of a model, taken from the same model on the meta device, where tensors have shapes but no memory."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import nn

from transom.config.architecture import Architecture, Transformer
from transom.config.bricks import NoPosition
from transom.config.depth import MixtureOfDepths
from transom.config.mixture import Mixture
from transom.config.recurrent import Recurrent
from transom.errors import ConfigError
from transom.files.limits import FREE_POSITION_TABLE
from transom.models.build import build_empty


@dataclass(frozen=True)
class Parameters:
    """Parameters by part of the model; shared parameters are counted once.

    Attributes:
        parts: count by module path, all blocks of a stack together: "decoder.cross" is W_Q, W_K, W_V, W_O of every decoder block.
        idle: parameters that one token does not use: the experts to which it is not routed.
    """

    parts: dict[str, int]
    idle: int = 0

    @property
    def total(self) -> int:
        """All parameters."""
        return sum(self.parts.values())

    @property
    def active(self) -> int:
        """Parameters that one token uses."""
        return self.total - self.idle

    @property
    def embeddings(self) -> int:
        """Parameters of token and position embeddings, the output embedding included."""
        return sum(count for part, count in self.parts.items() if "embedding" in part)


def count_parameters(config: Architecture) -> Parameters:
    """Count the parameters of a model with known vocabulary sizes.

    With h d_k = h d_v = d_model an attention layer has 4 d_model^2 weights; a feed-forward layer has 2 d_model d_ff. Biases and norms
    are added to these.

    Raises:
        ConfigError: a matrix has more elements than PyTorch can count.
    """
    parts = dict[str, int]()
    sizes = totals(config, torch.numel)
    for name, size in sizes.items():
        parts[_part(name)] = parts.get(_part(name), 0) + size
    return Parameters(parts, _idle(config, sizes))


def weights(config: Architecture, *names: str) -> int:
    """Count the weights of the linear maps whose parameter names, without indices, start with one of ``names``."""
    return sum(size for name, size in totals(config, _weights).items() if name.startswith(names))


def feed_forward_weights(config: Transformer) -> int:
    """Count the weights of one block's feed-forward network that multiply each token (active experts only)."""
    in_all = weights(config, "encoder.blocks.ff.", "decoder.blocks.ff.")
    return (in_all - _idle(config, totals(config, _weights))) // sum(config.stacks)


def excess_positions(config: Architecture) -> str | None:
    """Return an error message if a computed (not learned) position table is too large for the model's size; None if it is not.

    The size of such a table comes from the configuration alone: a few bytes could request gigabytes.
    """
    if not isinstance(config, Transformer) or not config.position.COMPUTED:
        return None
    table, most = config.position_table, max(FREE_POSITION_TABLE, count_parameters(config).total)
    if table <= most:
        return None
    return (
        f"model.max_seq_len: expected a {config.position.kind} position table of at most {most:,} numbers for a model of this size, found"
        f" {config.n_positions:,} positions and {table:,} numbers; lower max_seq_len, or choose position 'alibi' or 'relative'"
    )


@lru_cache(maxsize=64)
def totals(config: Architecture, measure: Callable[[torch.Tensor], int]) -> Mapping[str, int]:
    """Sum a measure over all parameters with the same name without indices: ``decoder.blocks.attn.q.weight`` covers every block.

    A shared parameter is counted once, as an embedding rather than an output projection. Blocks and experts are identical, so only models
    with one and two of them are built and the difference is extrapolated.
    """
    if isinstance(config, Transformer) and isinstance(config.depth, MixtureOfDepths) and (every := config.depth.every) > 1:
        routed = totals(config.model_copy(update={"depth": config.depth.model_copy(update={"every": 1})}), measure)
        n = {name: getattr(config, f"n_{name.split('.')[0]}_layers", 0) or config.stacks[0] for name in routed}
        return {name: size * (n[name] // every) // n[name] if ".blocks.depth." in name else size for name, size in routed.items()}
    for fewer, more, times in _smaller(config):
        few = totals(fewer, measure)
        return {name: few.get(name, 0) + times * (size - few.get(name, 0)) for name, size in totals(more, measure).items()}
    if isinstance(config, Transformer) and config.position.COMPUTED:
        config = config.model_copy(update={"position": NoPosition()})
    try:
        with torch.device("meta"):
            model = build_empty(config)
    except (RuntimeError, TypeError) as error:
        if "overflow" not in str(error).lower():
            raise
        raise ConfigError("model: expected matrices of fewer than 2^61 elements each, found a larger one; lower the widths") from None
    names, found = dict[nn.Parameter, str](), dict[str, int]()
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter not in names or not name.startswith("unembedding"):
            names[parameter] = re.sub(r"\.\d+(?=\.)", "", name)
    for parameter, name in names.items():
        found[name] = found.get(name, 0) + measure(parameter)
    return found


def _smaller(config: Architecture) -> Iterator[tuple[Architecture, Architecture, int]]:
    """Yield (smaller configuration, configuration with one more block or expert, number of further ones in ``config``)."""
    for field in ("n_encoder_layers", "n_decoder_layers", "n_layers") if isinstance(config, Transformer | Recurrent) else ():
        if (n := getattr(config, field, 0)) > 2:
            fewer, more = (config.model_copy(update={field: each}) for each in (1, 2))
            yield fewer, more, n - 1
    if isinstance(config, Transformer) and isinstance(config.feed_forward, Mixture) and (n := config.feed_forward.n_experts) > 2:
        bricks = (config.feed_forward.model_copy(update={"n_experts": each}) for each in (1, 2))
        fewer, more = (config.model_copy(update={"feed_forward": brick}) for brick in bricks)
        yield fewer, more, n - 1


def _idle(config: Architecture, sizes: Mapping[str, int]) -> int:
    """Count the parameters of the experts to which a token is not routed."""
    if not isinstance(config, Transformer) or not isinstance(config.feed_forward, Mixture):
        return 0
    n, top_k = config.feed_forward.n_experts, config.feed_forward.top_k
    return sum(size for name, size in sizes.items() if ".ff.experts." in name) * (n - top_k) // n


def _part(name: str) -> str:
    """Return the part of the model to which a parameter belongs.

    >>> _part("decoder.blocks.attn_residual.norm.weight"), _part("embedding.tokens.weight")
    ('decoder.norm', 'embedding')
    """
    first, second, *_ = name.replace(".blocks.", ".").split(".")
    if first in ("encoder", "decoder"):
        second = "norm" if second.endswith("_residual") else "cross" if second in ("maxout", "joined") else second
        return f"{first}.{second}"
    return "embedding.stem" if (first, second) == ("embedding", "stem") else first.removesuffix("_norm")


def _weights(parameter: torch.Tensor) -> int:
    return parameter.numel() if parameter.ndim > 1 else 0
