"""Check whether a model can be divided over a mesh of processes, and find the nearest layout that can. Arithmetic only."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from transom.config.architecture import ModelConfig, TransformerConfig
from transom.config.model import Seq2SeqConfig
from transom.config.moe import MoeConfig
from transom.config.parallel import ParallelConfig
from transom.config.suggestions import suggest
from transom.config.training import MuonConfig, NoEarlyExitConfig, TrainingConfig
from transom.errors import ConfigError

PREFERENCE = ("data", "shard", "tensor", "pipeline", "expert", "context")
"""Axes in the order in which ``nearest_layout`` enlarges them if several layouts are equally near."""

MAX_PROCESSES = 65_536
"""Largest number of processes of a layout; the limit catches typing errors."""


def layout_problems(config: ModelConfig, layout: ParallelConfig, training: TrainingConfig | None = None) -> list[str]:
    """Return one sentence per reason why a model cannot be trained in a layout; an empty list if it can.

    Args:
        config: model configuration; vocabulary sizes may be missing.
        layout: the layout.
        training: settings of batches, optimizer and adapter; None to check the model alone.
    """
    problems = [*_structure(config, layout), *_exactness(config, layout)]
    if training is not None:
        problems += [*_batches(config, training, layout), *_training(training, layout)]
    return problems


def nearest_layout(config: ModelConfig, layout: ParallelConfig, training: TrainingConfig | None = None) -> ParallelConfig:
    """Return the layout nearest to ``layout`` that has no problems: with as many processes or, if there is none, the most below.

    Args:
        config: model configuration.
        layout: the layout that is wanted.
        training: settings of batches, optimizer and adapter; None to check the model alone.
    """
    sizes = {axis: _possible_sizes(axis, config, layout.n_processes, training) for axis in layout.AXES}
    most = math.prod(map(max, sizes.values()))
    if training is not None:
        most = min(most, batch_size(training) * math.prod(max(sizes[axis]) for axis in ("tensor", "pipeline", "context")))
    for n in range(min(layout.n_processes, most), 1, -1):
        for candidate in sorted(_layouts(n, sizes), key=lambda each: _distance(each, layout)):
            if not layout_problems(config, candidate, training):
                return candidate
    return ParallelConfig()


def layouts_by_distance(
    config: ModelConfig, layout: ParallelConfig, training: TrainingConfig | None, n_processes: int
) -> list[ParallelConfig]:
    """Return all layouts of ``n_processes`` without problems, the nearest to ``layout`` first.

    The distance of two layouts is the sum of |log2(size / other size)| over all axes. Of equally near ones, that with the fewest axes in
    use comes first.
    """
    sizes = {axis: _possible_sizes(axis, config, n_processes, training) for axis in layout.AXES}
    found = [each for each in _layouts(n_processes, sizes) if not layout_problems(config, each, training)]
    return sorted(found, key=lambda each: _distance(each, layout))


def check_layout(config: ModelConfig, layout: ParallelConfig, training: TrainingConfig | None = None) -> None:
    """Raise ConfigError if a model cannot be trained in a layout; the message names every reason and the nearest layout that can."""
    if problems := layout_problems(config, layout, training):
        nearest = nearest_layout(config, layout, training)
        raise ConfigError(f"{'; '.join(problems)}; the nearest mesh that fits is {format_layout(nearest)}")


def parse_layout(text: str) -> ParallelConfig:
    """Parse a layout such as ``data=8,tensor=4``.

    Raises:
        ConfigError: an axis is unknown, given twice or below 1.
    """
    sizes = dict[str, int]()
    for part in text.split(","):
        axis, _, size = (word.strip() for word in part.partition("="))
        if axis not in ParallelConfig.AXES:
            raise ConfigError(f"--mesh: expected an axis with its size, such as data=8, found {part!r}; {suggest(axis, PREFERENCE)}")
        if not (size.isascii() and size.isdecimal() and len(size) < 7 and 1 <= int(size) <= MAX_PROCESSES):
            raise ConfigError(f"--mesh: expected {axis} from 1 to {MAX_PROCESSES:,}, found {size[:20]!r}; write {axis}=2")
        if axis in sizes:
            raise ConfigError(f"--mesh: expected each axis once, found {axis} twice; leave one out")
        sizes[axis] = int(size)
    layout = ParallelConfig(**sizes)
    if layout.n_processes > MAX_PROCESSES:
        raise ConfigError(f"--mesh: expected at most {MAX_PROCESSES:,} processes, found {layout.n_processes:,}; lower an axis")
    return layout


def format_layout(layout: ParallelConfig) -> str:
    """Format a layout as ``parse_layout`` reads it: the axes of more than one process, or data=1.

    >>> format_layout(ParallelConfig(data=8, tensor=4))
    'data=8,tensor=4'
    """
    return ",".join(f"{axis}={getattr(layout, axis)}" for axis in PREFERENCE if getattr(layout, axis) > 1) or "data=1"


def describe_rank(layout: ParallelConfig, rank: int) -> str:
    """Describe a rank by its number and its position in the layout.

    >>> describe_rank(ParallelConfig(data=2, tensor=4), 6)
    'rank 6 (data 1, tensor 2)'
    """
    position = layout.coordinates(rank)
    place = ", ".join(f"{axis} {position[axis]}" for axis in layout.AXES if getattr(layout, axis) > 1)
    return f"rank {rank} ({place})" if place else "one process"


def _structure(config: ModelConfig, layout: ParallelConfig) -> Iterator[str]:
    """Yield the numbers of a model that an axis does not divide, or that are too small for it."""
    n_blocks = sum(config.stacks)
    if not isinstance(config, TransformerConfig):
        for axis in ("tensor", "pipeline", "context", "expert"):
            if (size := getattr(layout, axis)) > 1:
                yield f"parallel.{axis}: expected 1, since this model is {config.FAMILY}, not a Transformer, found {size}"
        return
    if layout.tensor > 1:
        yield from (
            f"parallel.tensor: expected a divisor of {name} = {value}, found {layout.tensor}"
            for name, value in _split_widths(config).items()
            if value % layout.tensor and not ("n_kv_heads" in name and layout.tensor % value == 0)  # ranks can share a key head
        )
    if layout.pipeline > n_blocks:
        yield f"parallel.pipeline: expected at most the model's {n_blocks} blocks, found {layout.pipeline}"
    if layout.context > config.n_positions:
        name = "model.max_seq_len" if hasattr(config, "max_seq_len") else "the tokens of an image"
        yield f"parallel.context: expected at most {name} = {config.n_positions:,}, found {layout.context}"
    if layout.expert > 1 and not isinstance(config.feed_forward, MoeConfig):
        found = config.feed_forward.kind
        yield f"parallel.expert: expected 1 without a mixture of experts (model.feed_forward = {found!r}), found {layout.expert}"
    elif isinstance(config.feed_forward, MoeConfig) and (n := config.feed_forward.n_experts) % layout.expert:
        yield f"parallel.expert: expected a divisor of model.feed_forward.n_experts = {n}, found {layout.expert}"


def _split_widths(config: TransformerConfig) -> dict[str, int]:
    """Return the numbers that tensor parallelism divides, by field: heads, key-value heads and hidden units (Shoeybi et al. 2019)."""
    stacks = {"": config.of_stack("encoder")}
    if isinstance(config, Seq2SeqConfig) and (decoder := config.of_stack("decoder")) is not config:
        stacks["decoder_"] = decoder
    widths = dict[str, int]()
    for prefix, stack in stacks.items():
        widths[f"model.{prefix}n_heads"] = stack.n_heads
        widths[f"model.{prefix}n_kv_heads" if not prefix else "the decoder's n_kv_heads"] = stack.n_kv_heads
        if isinstance(moe := config.feed_forward, MoeConfig):
            expert = "model.feed_forward.d_expert" if moe.d_expert else f"model.{prefix}d_ff"
            widths[expert] = moe.width(stack.d_ff)
        else:
            widths[f"model.{prefix}d_ff"] = stack.d_ff
    return widths


def _exactness(config: ModelConfig, layout: ParallelConfig) -> Iterator[str]:
    """Yield components that would compute something else in a layout than in one process."""
    if not isinstance(config, TransformerConfig):
        return
    refused: list[tuple[bool, str, str, Sequence[str]]] = [
        (
            config.norm.kind == "batchnorm",
            "model.norm = 'batchnorm'",
            "computes its statistics over the whole batch",
            ("data", "shard", "expert", "context", "tensor", "pipeline"),
        ),
        (
            getattr(config.feed_forward, "capacity_factor", None) is not None,
            "model.feed_forward.capacity_factor",
            "drops tokens in the order of the whole batch",
            ("data", "shard", "expert", "context", "tensor", "pipeline"),
        ),
        (
            config.depth.kind != "full",
            f"model.depth = {config.depth.kind!r}",
            "selects among all tokens of a row",
            ("tensor", "context", "pipeline"),
        ),
        (
            config.attention.approximation.kind != "none",
            f"model.attention.approximation = {config.attention.approximation.kind!r}",
            "has sums over all tokens of a row",
            ("context",),
        ),
    ]
    for applies, what, why, axes in refused:
        yield from _refused(layout, axes, f"{what}, which {why}") if applies else ()
    if config.attention.value_residual.kind != "none" and layout.tensor * layout.context > 1:
        what = f"model.attention.value_residual = {config.attention.value_residual.kind!r}"
        yield from _refused(layout, ("pipeline",), f"{what} and tensor or context, which divide the values that later stages read")


def _training(training: TrainingConfig, layout: ParallelConfig) -> Iterator[str]:
    """Yield settings of a training that a layout does not support."""
    if isinstance(training.optimizer, MuonConfig):
        why = "training.optimizer = 'muon', which orthogonalizes whole matrices"
        yield from _refused(layout, ("shard", "tensor"), why)
    if training.adapter is not None:
        why = "training.adapter, whose base weights one process validates"
        yield from _refused(layout, ("shard", "tensor", "pipeline", "expert"), why)
    if training.precision == "fp16":
        why = "training.precision = 'fp16', whose loss scale each process would change by its own gradients"
        yield from _refused(layout, ("shard", "tensor", "pipeline", "expert"), why)
    exits: Any = getattr(training, "early_exit_loss", NoEarlyExitConfig())
    if exits.kind != "none":
        why = f"training.early_exit_loss = {exits.kind!r}, which has a loss after every block"
        yield from _refused(layout, ("tensor", "context"), why)


def _refused(layout: ParallelConfig, axes: Sequence[str], why: str) -> Iterator[str]:
    for axis in axes:
        if (size := getattr(layout, axis)) > 1:
            yield f"parallel.{axis}: expected 1 with {why}, found {size}"


def _batches(config: ModelConfig, training: TrainingConfig, layout: ParallelConfig) -> Iterator[str]:
    """Yield batches that are too small for their parts, or whose loss is not that of their rows."""
    name, size = ("batch_tokens" if hasattr(training, "batch_tokens") else "batch_size"), batch_size(training)
    if size < layout.n_batch_parts:
        parts = f"data * shard * expert = {layout.n_batch_parts}"
        yield f"training.{name}: expected at least one for each of the parallel.{parts} parts of a batch, found {size}"
    if config.kind == "text-embedder" and training.grad_accum_steps < layout.pipeline:
        yield (
            f"training.grad_accum_steps: expected at least parallel.pipeline = {layout.pipeline} micro-batches, since a contrastive loss"
            f" cannot be split, found {training.grad_accum_steps}"
        )


def batch_size(training: TrainingConfig) -> int:
    """Return the tokens, or images, of a batch."""
    size: int = getattr(training, "batch_tokens", 0) or getattr(training, "batch_size", 1)
    return size


def _possible_sizes(axis: str, config: ModelConfig, most: int, training: TrainingConfig | None) -> list[int]:
    """Return the sizes of an axis, up to ``most``, that have no problems while all other axes are 1.

    Further axes add problems and remove none, so other sizes occur in no layout without problems.
    """
    limits = {"data": most, "shard": most, "tensor": 1, "pipeline": 1, "expert": 1, "context": 1}
    if training is not None:
        limits |= {"data": batch_size(training), "shard": batch_size(training)}
    if isinstance(config, TransformerConfig):
        limits |= {"tensor": min(_split_widths(config).values()), "pipeline": sum(config.stacks), "context": config.n_positions}
        limits["expert"] = getattr(config.feed_forward, "n_experts", 1)
    sizes = range(1, min(most, limits[axis]) + 1)
    return [size for size in sizes if not layout_problems(config, ParallelConfig(**{axis: size}), training)]


def _layouts(n: int, sizes: dict[str, list[int]]) -> Iterator[ParallelConfig]:
    """Yield the layouts of ``n`` processes whose axes have one of the given sizes."""
    (axis, possible), *others = sizes.items()
    for size in possible:
        if n % size == 0:
            if others:
                for rest in _layouts(n // size, dict(others)):
                    yield rest.model_copy(update={axis: size})
            elif size == n:
                yield ParallelConfig(**{axis: size})


def _distance(layout: ParallelConfig, wanted: ParallelConfig) -> tuple[float, int, list[int]]:
    far = sum(abs(math.log2(size / other)) for size, other in zip(layout.sizes, wanted.sizes, strict=True))
    return round(far, 9), sum(size > 1 for size in layout.sizes), [-getattr(layout, axis) for axis in PREFERENCE]
