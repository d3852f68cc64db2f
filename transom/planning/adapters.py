"""What low-rank adaptation adds to a model, from the configuration alone."""

from collections.abc import Iterator
from typing import NamedTuple

from transom.config.adapter import Lora
from transom.config.architecture import Architecture, Transformer
from transom.config.bricks import Gated
from transom.config.mixture import Mixture
from transom.config.model import Seq2Seq
from transom.errors import ConfigError


class Maps(NamedTuple):
    """Linear maps of one shape.

    Attributes:
        n: how many there are.
        d_in: columns that each reads.
        d_out: columns that each gives.
    """

    n: int
    d_in: int
    d_out: int


def adaptable(config: Architecture) -> dict[str, list[Maps]]:
    """List the maps of all blocks by the name that ``training.adapter.on`` has for them; none where there are no blocks."""
    found = dict[str, list[Maps]]()
    if isinstance(config, Transformer):
        for name, maps in (*_attention(config, "attn", sum(config.stacks)), *_feed_forward(config, sum(config.stacks))):
            found.setdefault(name, []).append(maps)
    if isinstance(config, Seq2Seq):
        found |= {name: [maps] for name, maps in _attention(config, "cross", config.n_decoder_layers)}
    return found


def count_adapters(config: Architecture, brick: Lora) -> int:
    """Count the numbers of all A and B.

    Raises:
        ConfigError: the model has no such maps, or statistics that would move beside them.
    """
    there = adaptable(config)
    if not there:
        raise ConfigError(f"training.adapter: expected a Transformer, whose maps can be adapted, found {config.kind}; leave it out")
    if isinstance(config, Transformer) and config.norm.kind == "batchnorm":
        raise ConfigError(
            "training.adapter: expected a model that stays as it was beside what learns, found model.norm = 'batchnorm', whose running"
            " statistics go on; leave it out"
        )
    if missing := [name for name in brick.on if name not in there]:
        raise ConfigError(f"training.adapter.on: expected maps of this {config.kind}, {', '.join(there)}, found {missing[0]}; remove it")
    return sum(maps.n * brick.parameters(maps.d_in, maps.d_out) for name in dict.fromkeys(brick.on) for maps in there[name])


def _attention(c: Transformer, name: str, n_layers: int) -> Iterator[tuple[str, Maps]]:
    yield f"{name}.q", Maps(n_layers, c.d_model, c.n_heads * c.width_of_head)
    yield f"{name}.k", Maps(n_layers, c.d_model, c.key_heads * c.width_of_head)
    yield f"{name}.v", Maps(n_layers, c.d_model, c.key_heads * c.width_of_value)
    if c.attention.output:
        yield f"{name}.o", Maps(n_layers, c.n_heads * c.width_of_value, c.d_model)


def _feed_forward(c: Transformer, n_layers: int) -> Iterator[tuple[str, Maps]]:
    brick, networks = c.feed_forward, [(n_layers, c.d_ff)]
    if isinstance(brick, Mixture):
        width = brick.width(c.d_ff)
        networks = [(n_layers * brick.n_experts, width)] + [(n_layers, brick.n_shared * width)] * (brick.n_shared > 0)
        brick = brick.expert
    for n, width in networks:
        for name in ("gate", "up") if isinstance(brick, Gated) else ("up",):
            yield f"ff.{name}", Maps(n, c.d_model, width)
        yield "ff.down", Maps(n, width, c.d_model)
