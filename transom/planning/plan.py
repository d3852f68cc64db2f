"""The plan of a training run: parameters, FLOPs, bytes and time, computed from the configuration before anything is allocated."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from transom.config.architecture import EncoderDecoderConfig, ModelConfig, TransformerConfig
from transom.config.vision import ImageClassifierConfig
from transom.planning.cache_size import CacheSize
from transom.planning.flops import count_flops, count_pair_flops
from transom.planning.parameters import ParameterCount, count_parameters
from transom.planning.training_bytes import Sharding, StepMemory, TrainingBytes

OPTIMAL_TOKENS_PER_PARAMETER = 20
"""Tokens per parameter of the compute-optimal language model (Hoffmann et al. 2022, table 3: 1.4 trillion tokens for 70 billion)."""


@dataclass(frozen=True)
class FlopsPerToken:
    """Floating-point operations per token, 2 per multiply-add, matrix products only.

    Attributes:
        unit: what one count is for: "token", "target token" of a pair whose sides have the lengths of the plan, "text" or "image".
        weights: forward FLOPs of the weights: 2 per weight that multiplies the token.
        pairs: forward FLOPs of attention scores and weighted values.
        parts: forward FLOPs by part of the model.
        six_n: the rule of thumb 6 N, with N all active parameters (Kaplan et al. 2020, section 2.1).
        formula: the derivation, one line per sum.
    """

    unit: str
    weights: float
    pairs: float
    parts: dict[str, float]
    six_n: float
    formula: tuple[str, ...]

    @property
    def forward(self) -> float:
        """FLOPs of the forward pass."""
        return self.weights + self.pairs

    @property
    def training(self) -> float:
        """FLOPs of forward and backward pass."""
        return 3 * self.forward

    def executed(self, recompute: bool) -> float:
        """Return the FLOPs of ``training``; with ``recompute`` those of a second forward pass of the blocks too."""
        blocks = sum(flops for part, flops in self.parts.items() if part.startswith(("encoder.", "decoder.")))
        return self.training + (blocks if recompute else 0.0)

    @property
    def above_six_n(self) -> float:
        """Relative difference of ``training`` to 6 N; negative where embeddings, which multiply nothing, are many."""
        return self.training / self.six_n - 1


def flops_per_token(config: ModelConfig, source: int, target: int, labeled: float = 1.0) -> FlopsPerToken:
    """Derive the FLOPs per token.

    Args:
        config: model configuration with known vocabulary sizes.
        source: tokens per source, or per text of an encoder; for images, ``n_positions``, or 0 for a convolutional network.
        target: tokens per target, or per text of a decoder; 0 for an encoder.
        labeled: fraction of an encoder's tokens whose logits are computed.
    """
    is_encoder = not config.VOCABULARIES or (target == 0 and source > 0)
    n_logits = target if not is_encoder else 1 if "classes" in config.FROM_DATA else math.ceil(labeled * source)
    unit, n = ("image", 1) if isinstance(config, ImageClassifierConfig) else ("token", source if is_encoder else target)
    if isinstance(config, EncoderDecoderConfig):
        unit = "target token"
    counted = count_flops(config, 1, source, n_logits)
    pairs, count = count_pair_flops(config, 1, source, n_logits) / n, count_parameters(config)
    parts = {name: flops / n for name, flops in counted.parts.items() if flops}
    weights = counted.forward / n - pairs
    lines = [f"weights: 2 FLOPs x {weights / 2:,.0f} weights per {unit} = {weights:,.0f}"]
    if isinstance(config, TransformerConfig):
        lines.append(f"attention: {_pair_formula(config, source, target)} = {pairs:,.0f} per {unit}")
    lines.append(f"training: 3 x {weights + pairs:,.0f} = {3 * (weights + pairs):,.0f}, since a product has two more in the backward pass")
    return FlopsPerToken(unit, weights, pairs, parts, 6.0 * count.active, tuple(lines))


def _pair_formula(c: TransformerConfig, source: int, target: int) -> str:
    """Return the formula of the FLOPs of attention; in words where sparse patterns, routing or an approximation change the pairs."""
    layers, length = sum(c.stacks), target or source
    if len(c.stacks) > 1:
        d, sizes = c.of_stack("decoder"), f"2 x {c.n_heads} heads x ({c.d_head} + {c.d_value})"
        if (own := f"2 x {d.n_heads} heads x ({d.d_head} + {d.d_value})") != sizes:
            return f"{sizes} x all pairs of the encoder + {own} x those of the decoder and between both"
        return f"{sizes} x all pairs of the encoder, the decoder and between both"
    if c.attention.approximation.kind != "none" or c.depth.kind != "full" or c.attention.pattern.kind != "full":
        return f"2 x {c.n_heads} heads x ({c.d_head} + {c.d_value}) x the pairs that are computed, in {layers} layers"
    return f"{layers} layers x 2 x {c.n_heads} heads x ({c.d_head} + {c.d_value}) x {length:,} keys"


@dataclass(frozen=True)
class ComputeBudget:
    """Tokens and compute beside the optimum of Hoffmann et al. 2022: about 20 tokens per parameter, with compute C = 6 N D.

    Attributes:
        tokens: tokens of the training.
        tokens_per_parameter: ``tokens`` per parameter.
        flops: FLOPs of the training.
        optimal_tokens: tokens for which a model of this size is compute-optimal.
        optimal_flops: FLOPs of a training with them.
        optimal_parameters: parameters of the compute-optimal model for ``flops``.
    """

    tokens: int
    tokens_per_parameter: float
    flops: float
    optimal_tokens: int
    optimal_flops: float
    optimal_parameters: float


def compute_budget(n_parameters: int, tokens: int, training_flops_per_token: float) -> ComputeBudget:
    """Compare a training with the compute-optimal one: D = 20 N and C = 6 N D, so N = sqrt(C / 120)."""
    flops, optimal = tokens * training_flops_per_token, OPTIMAL_TOKENS_PER_PARAMETER * n_parameters
    return ComputeBudget(
        tokens,
        tokens / n_parameters,
        flops,
        optimal,
        optimal * training_flops_per_token,
        math.sqrt(flops / (6 * OPTIMAL_TOKENS_PER_PARAMETER)),
    )


@dataclass(frozen=True)
class TimePlan:
    """Time of the training.

    Attributes:
        flops_per_step: FLOPs of a step on all devices.
        flops_per_second: highest rate of one device in FLOP/s.
        rate_source: where this rate comes from, such as "measured on this machine".
        utilization: fraction of this rate that training reaches.
        seconds_per_step: seconds of a step, without validation and checkpoints.
        steps: optimizer steps.
        devices: number of devices.
    """

    flops_per_step: float
    flops_per_second: float
    rate_source: str
    utilization: float
    seconds_per_step: float
    steps: int
    devices: int

    @property
    def seconds(self) -> float:
        """Seconds of all steps."""
        return self.steps * self.seconds_per_step

    @property
    def device_hours(self) -> float:
        """Hours of all devices together."""
        return self.seconds * self.devices / 3600


@dataclass(frozen=True)
class Fit:
    """Whether the training fits into the memory of the devices.

    Attributes:
        device_bytes: memory of one device in bytes.
        fits: whether the plan's batch fits.
        largest_rows: most rows per forward pass of a device that fit; 0 if not even one does.
        fewest_devices: devices of this memory that are needed for one row each, by sharding; None where no number suffices.
    """

    device_bytes: int
    fits: bool
    largest_rows: int
    fewest_devices: dict[Sharding, int | None]


@dataclass(frozen=True)
class Plan:
    """The needs of a training, computed before it starts.

    Attributes:
        name: preset or recipe.
        family: kind of model, such as "a decoder-only Transformer".
        parameters: number of parameters by part.
        flops: operations per token.
        precision: dtype of the matrix products.
        rows: sequences or images per forward pass of a device.
        source: tokens per source; 0 without a source.
        target: tokens per target; 0 without a target.
        batch: tokens or images per step on all devices.
        sharding: what the devices divide among themselves.
        memory: bytes per device.
        step: bytes of one step, from which ``memory.activations`` comes; None if this PyTorch cannot predict them.
        cache: cache of generation; None for models that generate no text with attention.
        budget: tokens and compute; None for models other than decoders.
        time: time of the training; None if the rate of the device is unknown.
        fit: what fits.
        notes: sentences on what is predicted otherwise than it runs.
    """

    name: str
    family: str
    parameters: ParameterCount
    flops: FlopsPerToken
    precision: str
    rows: int
    source: int
    target: int
    batch: int
    sharding: Sharding
    memory: TrainingBytes
    step: StepMemory | None
    cache: CacheSize | None
    budget: ComputeBudget | None
    time: TimePlan | None
    fit: Fit
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON-serializable data, with the sums beside their terms; bytes, FLOPs and seconds are numbers."""
        p, f, t = self.parameters, self.flops, self.time
        flops = {"forward": f.forward, "training": f.training, "above_six_n": f.above_six_n}
        timed = {} if t is None else {"seconds": t.seconds, "device_hours": t.device_hours}
        return asdict(self) | {
            "parameters": {"total": p.total, "active": p.active, "embeddings": p.embeddings, "parts": p.parts},
            "flops": asdict(f) | flops,
            "memory": asdict(self.memory) | {"total": self.memory.total},
            "time": None if t is None else asdict(t) | timed,
        }
