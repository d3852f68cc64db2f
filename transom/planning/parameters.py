"""How many numbers a model learns: those of the same model on the meta device, where tensors have shapes and no memory."""

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
    """Learned numbers by the part of the model that holds them; what is shared counts once.

    Attributes:
        parts: module path, with all blocks of a stack together, to count: "decoder.cross" is W_Q, W_K, W_V, W_O of every decoder block.
        idle: how many of them a token does not use: the experts that it is not sent to.
    """

    parts: dict[str, int]
    idle: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.parts.values())

    @property
    def active(self) -> int:
        """Those that a token uses."""
        return self.total - self.idle

    @property
    def embeddings(self) -> int:
        """Those of the token and position tables, the output map included."""
        return sum(count for part, count in self.parts.items() if "embedding" in part)


def count_parameters(config: Architecture) -> Parameters:
    """Count the parameters of a model whose vocabulary sizes are known.

    An attention layer has 4 d_model^2 weights where h d_k = h d_v = d_model, a feed-forward layer 2 d_model d_ff; biases and norms
    come on top.

    Raises:
        ConfigError: a matrix of it has more numbers than PyTorch can count.
    """
    parts = dict[str, int]()
    sizes = totals(config, torch.numel)
    for name, size in sizes.items():
        parts[_part(name)] = parts.get(_part(name), 0) + size
    return Parameters(parts, _idle(config, sizes))


def weights(config: Architecture, *names: str) -> int:
    """Count the weights of the linear maps whose parameters' names, numbers left out, begin with one of these."""
    return sum(size for name, size in totals(config, _weights).items() if name.startswith(names))


def feed_forward_weights(config: Transformer) -> int:
    """Count the weights of a block's feed-forward network that multiply each token."""
    in_all = weights(config, "encoder.blocks.ff.", "decoder.blocks.ff.")
    return (in_all - _idle(config, totals(config, _weights))) // sum(config.stacks)


def excess_positions(config: Architecture) -> str | None:
    """Tell what is wrong with a table of positions that is computed, not learned, where it is larger than the weights justify; or None.

    A configuration alone vouches for such a table: a few bytes could ask for gigabytes.
    """
    if not isinstance(config, Transformer) or not config.position.COMPUTED:
        return None
    table, most = config.position_table, max(FREE_POSITION_TABLE, count_parameters(config).total)
    if table <= most:
        return None
    return (
        f"model.max_seq_len: expected {config.position.kind} positions of at most {most:,} numbers for a model of so many weights, found"
        f" {config.n_positions:,} positions and {table:,} numbers; lower max_seq_len, or take position 'alibi' or 'relative'"
    )


@lru_cache(maxsize=64)
def totals(config: Architecture, measure: Callable[[torch.Tensor], int]) -> Mapping[str, int]:
    """Sum a measure of all parameters that have a name, numbers left out: ``decoder.blocks.attn.q.weight`` is of every block.

    A parameter that is shared counts once, as an embedding rather than an output map. Blocks and experts are all alike: of many, a few are
    built, and a few more to see what each further one adds.
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
        raise ConfigError("model: expected matrices of fewer than 2^61 numbers each, found a larger one; lower its widths") from None
    names, found = dict[nn.Parameter, str](), dict[str, int]()
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter not in names or not name.startswith("unembedding"):
            names[parameter] = re.sub(r"\.\d+(?=\.)", "", name)
    for parameter, name in names.items():
        found[name] = found.get(name, 0) + measure(parameter)
    return found


def _smaller(config: Architecture) -> Iterator[tuple[Architecture, Architecture, int]]:
    """Give a smaller model, one with a block or an expert more, and how many of them ``config`` has beyond the first."""
    for field in ("n_encoder_layers", "n_decoder_layers", "n_layers") if isinstance(config, Transformer | Recurrent) else ():
        if (n := getattr(config, field, 0)) > 2:
            fewer, more = (config.model_copy(update={field: each}) for each in (1, 2))
            yield fewer, more, n - 1
    if isinstance(config, Transformer) and isinstance(config.feed_forward, Mixture) and (n := config.feed_forward.n_experts) > 2:
        bricks = (config.feed_forward.model_copy(update={"n_experts": each}) for each in (1, 2))
        fewer, more = (config.model_copy(update={"feed_forward": brick}) for brick in bricks)
        yield fewer, more, n - 1


def _idle(config: Architecture, sizes: Mapping[str, int]) -> int:
    """Count what experts hold that a token is not sent to."""
    if not isinstance(config, Transformer) or not isinstance(config.feed_forward, Mixture):
        return 0
    n, top_k = config.feed_forward.n_experts, config.feed_forward.top_k
    return sum(size for name, size in sizes.items() if ".ff.experts." in name) * (n - top_k) // n


def _part(name: str) -> str:
    """Name the part of a model that a parameter belongs to.

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
