"""Shrink a model, and a layout, so that a small machine can try how the layout divides the model."""

import math
from collections.abc import Iterator
from itertools import product
from operator import ne
from typing import Any

from pydantic import ValidationError

from transom.config.architecture import ModelConfig, TransformerConfig
from transom.config.components import MultiHeadAttentionConfig, RotaryConfig
from transom.config.moe import MoeConfig
from transom.config.parallel import ParallelConfig
from transom.config.patterns import block_patterns
from transom.config.recurrent import RecurrentConfig
from transom.config.vision import ConvStemConfig, ImageClassifierConfig, VisionTransformerConfig
from transom.planning.stages import divide_stages

MIN_WIDTH, MIN_VOCABULARY, MIN_LENGTH = 16, 32, 17
"""Smallest dimension, vocabulary and number of tokens of a shrunken model, if the model itself has as many."""

MAX_TRIED = 8
"""Most widths that are tried for stages that hold the same: in narrow models the layers have other shares of the FLOPs."""

GROUPS = 8
"""Groups of the norm of a convolutional stem, which must divide its channels as before."""

LAYER_FIELDS = ("n_encoder_layers", "n_decoder_layers", "n_layers")


def shrink_layout(layout: ParallelConfig, most: int) -> ParallelConfig:
    """Return a layout of at most ``most`` processes, if fewer parts along ``data``, then along ``shard``, suffice.

    Neither becomes 1, where nothing would be divided, and no other axis changes, so the result may still have more processes.

    >>> shrink_layout(ParallelConfig(data=100, tensor=8), 64).sizes, shrink_layout(ParallelConfig(data=4, shard=64), 64).sizes
    ((1, 8, 1, 1, 1, 8), (1, 2, 32, 1, 1, 1))
    """
    for axis in ("data", "shard"):
        size = getattr(layout, axis)
        layout = layout.model_copy(update={axis: max(min(size, 2), min(size, most * size // layout.n_processes))})
    return layout


def shrink(config: ModelConfig, layout: ParallelConfig) -> ModelConfig:
    """Return a small model that ``layout`` divides as it divides ``config``.

    Family, components, heads, experts and classes stay. So does what a stage of the pipeline holds: which stacks, and one block of each or
    several; wider models are tried until that is so. Hidden units and vocabulary keep their remainders when they are divided among the
    ranks of ``tensor`` and ``shard``. The width is the smallest that the components admit, and other dimensions are in proportion. Texts
    and images are short, but have tokens for each rank that splits them.

    Args:
        config: model configuration with known vocabulary sizes.
        layout: the layout, whether or not it fits the model.
    """
    lengths, best, fewest, n_tried = _lengths(config, layout), config, math.inf, 0
    for widths in _widths(config, layout):
        scale = widths.get("d_model", config.d_model) / config.d_model
        fields = widths | lengths | _vocabularies(config, layout, scale) | _hidden_units(config, layout, scale)
        try:
            small, others = _with_fewer_layers(_changed(config, fields), config, layout)
        except ValidationError:  # the components need larger dimensions
            continue
        n_tried += 1
        if others < fewest:
            best, fewest = small, others
        if fewest == 0 or n_tried == MAX_TRIED:
            break
    return best


def _changed(config: ModelConfig, fields: dict[str, Any]) -> ModelConfig:
    return type(config).model_validate(config.model_dump(exclude_unset=True) | fields)


def _congruent(value: int, period: int, least: int) -> int:
    """Return the smallest number from ``least`` on with the remainder of ``value`` modulo ``period``, at most ``value``.

    >>> _congruent(14336, 8, 16), _congruent(50257, 4, 32), _congruent(10, 4, 32)
    (16, 33, 10)
    """
    return min(value, least + (value - least) % period)


def _vocabularies(config: ModelConfig, layout: ParallelConfig, scale: float) -> dict[str, Any]:
    whole = {name: getattr(config, name) for name in config.VOCABULARIES}
    sizes = {name: _congruent(size, layout.shard, max(MIN_VOCABULARY, layout.shard, round(scale * size))) for name, size in whole.items()}
    fields: dict[str, Any] = dict(sizes)
    for name in ("mask_token_id", "pad_token_id"):
        if (token := getattr(config, name, None)) is not None:
            is_new = name == "mask_token_id" and token == getattr(config, "vocab_size", None)  # a row after the vocabulary
            fields[name] = min(token, min(sizes.values()) - (not is_new))
    return fields


def _lengths(config: ModelConfig, layout: ParallelConfig) -> dict[str, Any]:
    """Return the length of texts, or the size of images, with two tokens for each rank that splits them."""
    n_tokens = max(MIN_LENGTH, 2 * layout.context * layout.tensor + 1)
    if isinstance(config, VisionTransformerConfig):
        grid, patch = 1, min(config.patch_size, 2)
        while grid < config.grid and grid**2 + config.n_class_tokens < n_tokens:
            grid += 1
        return {"image_size": grid * config.reduction * patch, "patch_size": patch}
    if isinstance(config, ImageClassifierConfig):
        return {"image_size": min(config.image_size, 2 * config.reduction)}
    return {"max_seq_len": min(config.max_seq_len, n_tokens)} if hasattr(config, "max_seq_len") else {}


def _hidden_units(config: ModelConfig, layout: ParallelConfig, scale: float) -> dict[str, Any]:
    fields, period = dict[str, Any](), layout.tensor * layout.shard

    def scaled(width: int) -> int:
        return _congruent(width, period, max(MIN_WIDTH, 2 * layout.tensor, round(scale * width)))

    for name in ("d_ff", "decoder_d_ff"):
        if name in config.model_fields_set or (name == "d_ff" and hasattr(config, name)):
            fields[name] = scaled(getattr(config, name))
    set_fields = config.model_dump(exclude_unset=True)
    if isinstance(moe := getattr(config, "feed_forward", None), MoeConfig) and moe.d_expert is not None:
        fields["feed_forward"] = set_fields["feed_forward"] | {"d_expert": scaled(moe.d_expert)}
    if isinstance(stem := getattr(config, "stem", None), ConvStemConfig) and "stem" in set_fields:
        channels = [_congruent(each, GROUPS * layout.shard, GROUPS) for each in stem.channels]
        fields["stem"] = set_fields["stem"] | {"channels": channels}
    return fields


def _widths(config: ModelConfig, layout: ParallelConfig) -> Iterator[dict[str, Any]]:
    """Yield dimensions of hidden states and heads, the smallest first; the components may not admit them."""
    least = min(config.d_model, max(MIN_WIDTH, layout.shard))
    if isinstance(config, TransformerConfig):
        for d_head in range(2, config.d_head, 2):
            d_value = d_head if config.d_value == config.d_head else max(1, config.d_value * d_head // config.d_head)
            d_model = min(config.d_model, least + -least % 4)
            if config.n_heads * config.d_head == config.d_model:
                d_model = config.n_heads * d_head
            elif config.n_heads * config.d_value == config.d_model:
                d_model = config.n_heads * d_value
            if d_model >= least:
                yield {"d_model": d_model, "d_head": d_head, "d_value": d_value}
    else:
        d_model = _congruent(config.d_model, 2 * layout.shard, least)
        d_embedding = getattr(config, "d_embedding", config.d_model)
        own = d_model if d_embedding == config.d_model else _congruent(d_embedding, 2 * layout.shard, least)
        yield {"d_model": d_model} | ({"d_embedding": own} if isinstance(config, RecurrentConfig) else {})
    yield {}


def _with_fewer_layers(small: ModelConfig, config: ModelConfig, layout: ParallelConfig) -> tuple[ModelConfig, int]:
    """Return ``small`` with the fewest layers whose stages hold what those of ``config`` hold, and the number of stages that do not."""
    names, n_blocks = [name for name in LAYER_FIELDS if hasattr(config, name)], sum(config.stacks)
    in_stages = layout.pipeline > 1 and isinstance(config, TransformerConfig)
    if not names or (in_stages and layout.pipeline > n_blocks):
        return small, 0
    period = _period(config)
    least = [min(n, max(period, 1 if in_stages else 2)) for n in config.stacks]
    if not in_stages:
        return small.model_copy(update=dict(zip(names, least, strict=True))), 0
    wanted, best, fewest = _stage_contents(config, layout), small, n_blocks + 1
    choices = product(*(range(low, n + 1) for low, n in zip(least, config.stacks, strict=True)))
    for stacks in sorted((each for each in choices if sum(each) >= layout.pipeline), key=sum):
        fewer = small.model_copy(update=dict(zip(names, stacks, strict=True)))
        others = sum(map(ne, _stage_contents(fewer, layout), wanted))
        if others < fewest:
            best, fewest = fewer, others
        if fewest == 0:
            break
    return best, fewest


def _period(config: ModelConfig) -> int:
    """Return the number of layers after which the layers of a stack repeat."""
    if not isinstance(config, TransformerConfig):
        return 1
    periods = [getattr(config.depth, "every", 1)]
    if isinstance(config.attention, MultiHeadAttentionConfig):
        periods.append(len(block_patterns(config.attention.pattern)))
    if isinstance(config.position, RotaryConfig):
        periods.append(len(config.position.rotations))
    return max(periods)


def _stage_contents(config: ModelConfig, layout: ParallelConfig) -> list[dict[str, int]]:
    """Return, for each stage, its stacks and the number of blocks of each, where 2 stands for several."""
    return [{stack: min(n, 2) for stack, n in stage.blocks.items()} for stage in divide_stages(config, layout.pipeline)]
