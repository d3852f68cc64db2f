"""The schema of a training run."""

from typing import Annotated, Literal

from pydantic import Field

from transom.config.adapter import LoraConfig
from transom.config.component_registry import register_component
from transom.config.schema import ComponentConfig, Schema, Slot

PositiveRate = Annotated[float, Field(gt=0)]


AnyOptimizer = Annotated[ComponentConfig, Slot("optimizer")]


@register_component("optimizer")
class SgdConfig(ComponentConfig):
    """Stochastic gradient descent with momentum."""

    kind: Literal["sgd"] = "sgd"
    momentum: float = Field(0.9, ge=0, lt=1, description="share of the last update that is kept")
    weight_decay: float = Field(0.0, ge=0, description="L2 penalty added to the gradient")


@register_component("optimizer")
class AdamConfig(ComponentConfig):
    """Adam (Kingma & Ba 2015) with the betas and epsilon of Vaswani et al. 2017, section 5.3."""

    kind: Literal["adam"] = "adam"
    beta1: float = Field(0.9, ge=0, lt=1, description="decay of the gradient's running mean")
    beta2: float = Field(0.98, ge=0, lt=1, description="decay of the squared gradient's running mean")
    eps: float = Field(1e-9, gt=0, description="added to the denominator")


@register_component("optimizer")
class AdamWConfig(AdamConfig):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019), on matrices only."""

    kind: Literal["adamw"] = "adamw"  # type: ignore[assignment]
    weight_decay: float = Field(0.01, ge=0, description="decoupled decay of weight matrices; never of biases, gains or embeddings")


@register_component("optimizer")
class MuonConfig(AdamWConfig):
    """Muon (Jordan et al. 2024) for the maps of attention and feed-forward in blocks, AdamWConfig for all the rest, experts and routers included.

    M <- momentum M + (1 - momentum) G; W <- (1 - lr weight_decay) W - 0.2 lr sqrt(max(rows, columns)) orthogonal(G + momentum (M - G)).
    orthogonal(U S V^T) is U V^T, nearly, by five Newton-Schulz steps. The factor of Liu et al. 2025, eq. 4, gives an update the size of
    AdamWConfig's, so that both go by one learning rate. A small model learns much more from a step; the larger the batch, the less it costs.
    """

    kind: Literal["muon"] = "muon"  # type: ignore[assignment]
    momentum: float = Field(0.95, ge=0, lt=1, description="share of the matrices' running gradient that is kept")
    weight_decay: float = Field(0.1, ge=0, description="decoupled decay of weight matrices; never of biases, gains or embeddings")


class ScheduleConfig(ComponentConfig):
    """What every schedule has."""

    warmup_steps: int = Field(1000, ge=0, description="steps of linear rise")


AnySchedule = Annotated[ScheduleConfig, Slot("schedule", ScheduleConfig)]


@register_component("schedule")
class InverseSqrtScheduleConfig(ScheduleConfig):
    """min(step^-0.5, step * warmup^-1.5), scaled so that the peak is ``training.learning_rate`` (Vaswani et al. 2017, eq. 3).

    ``learning_rate = "noam"`` takes the paper's own peak, (d_model * warmup_steps)^-0.5.
    """

    kind: Literal["inverse-sqrt"] = "inverse-sqrt"
    warmup_steps: int = Field(4000, ge=1, description="steps of linear rise")


@register_component("schedule")
class CosineScheduleConfig(ScheduleConfig):
    """Linear rise, then half a cosine down to ``min_lr_ratio`` times the peak at the last step."""

    kind: Literal["cosine"] = "cosine"
    min_lr_ratio: float = Field(0.1, ge=0, le=1, description="last learning rate as a share of the peak")


@register_component("schedule")
class WarmupStableDecayConfig(ScheduleConfig):
    """Linear rise, a plateau, and a linear fall to zero over the last share of the steps (Hu et al. 2024)."""

    kind: Literal["wsd"] = "wsd"
    decay_fraction: float = Field(0.2, gt=0, le=1, description="share of all steps that the fall takes")


AnyAverage = Annotated[ComponentConfig, Slot("average")]


@register_component("average")
class NoAverageConfig(ComponentConfig):
    """The weights as the optimizer leaves them."""

    kind: Literal["none"] = "none"


@register_component("average")
class EmaConfig(ComponentConfig):
    """An exponential moving average of the weights, updated each step, corrected for its start as Adam's moments are.

    After t steps: (1 - decay) sum_i decay^(t - i) w_i / (1 - decay^t). The initial weights w_0 are no part of it. A validation measures the
    raw weights too, which takes a second pass over the validation data, and keeps the better of both.
    """

    kind: Literal["ema"] = "ema"
    decay: float = Field(0.999, gt=0, lt=1, description="share of the old average that is kept at a step")


@register_component("average")
class CheckpointAverageConfig(ComponentConfig):
    """The mean of the last checkpoints' weights (Vaswani et al. 2017, section 6.1); a validation measures the raw ones too, as for ema."""

    kind: Literal["checkpoints"] = "checkpoints"
    n_checkpoints: int = Field(5, ge=1, description="how many checkpoints")


PeakLearningRate = PositiveRate | Literal["noam"]
LEARNING_RATE_HELP = "peak learning rate, or the paper's (d_model * warmup_steps)^-0.5"
LABEL_SMOOTHING_HELP = "probability spread evenly over the vocabulary, or the classes (Szegedy et al. 2016)"


class TrainingConfig(Schema):
    """One training run."""

    max_steps: int = Field(20000, ge=1, description="optimizer steps")
    max_minutes: float | None = Field(
        None,
        gt=0,
        description="stop, with everything saved, after this many minutes of training; the schedule goes by max_steps all the same",
    )
    grad_accum_steps: int = Field(
        1,
        ge=1,
        description="slices a batch is computed in, to save memory; the result is the same, but for batch norm and full experts",
    )
    optimizer: AnyOptimizer = Field(AdamConfig(), description="the optimizer component")
    learning_rate: PeakLearningRate = Field("noam", description=LEARNING_RATE_HELP)
    schedule: AnySchedule = Field(InverseSqrtScheduleConfig(), description="the learning-rate schedule component")
    max_grad_norm: float | None = Field(1.0, gt=0, description="largest norm of the whole gradient; none to leave it")
    label_smoothing: float = Field(0.1, ge=0, lt=1, description=LABEL_SMOOTHING_HELP)
    average: AnyAverage = Field(
        CheckpointAverageConfig(), description="what is validated beside the raw weights; the better of both is kept"
    )
    precision: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        "auto", description="arithmetic of the matrix products; auto goes by the processor's instructions, and the run keeps the choice"
    )
    processes: int = Field(
        1,
        ge=1,
        description="processes on this machine that share each batch: for use beside other work, where threads stall; alone 1 is best",
    )
    init_from: str | None = Field(
        None,
        description="run folder to start from: its tokenizer, widths and components, and weights wherever names agree; else all is fresh. What"
        " a packaged recipe says of the model's shape gives way; what is set besides is changed or, where weights do not allow it, refused",
    )
    adapter: LoraConfig | None = Field(
        None, description="what learns in place of all weights, with init_from: lora; the weights that it is added to are kept"
    )
    seed: int = Field(1, ge=0, lt=2**63, description="seed of initial weights, order, dropout and BPE-dropout")
    validate_every: int = Field(500, ge=1, description="steps between two validations")
    best_checkpoint_metric: str = Field("loss", description="validation figure that chooses the kept weights")
    patience: int | None = Field(None, ge=1, description="stop after this many validations without a better one")
    checkpoint_every: int = Field(500, ge=1, description="steps between two checkpoints")
    log_every: int = Field(10, ge=1, description="steps between two lines of metrics.jsonl")
    tensorboard: bool = Field(False, description="also write TensorBoard events (extra 'log')")


class TextTrainingConfig(TrainingConfig):
    """One training run on text."""

    batch_tokens: int = Field(
        4096, ge=1, description="most tokens of a batch on its longer side, padding included, over all ranks and accumulation"
    )


class RDropTrainingConfig(TextTrainingConfig):
    """One training run on text that may read each batch twice."""

    r_drop: float = Field(
        0.0,
        ge=0,
        description="alpha of R-Drop (Liang et al. 2021): each batch is read twice, under two dropouts, and their answers are drawn"
        " together by alpha / 4 (KL(p || q) + KL(q || p)); 0 reads it once. Pays on little data in long runs; a step takes twice the time",
    )


class AdamWTrainingConfig(TrainingConfig):
    """What runs share that learn by AdamWConfig, with no smoothing and no averaging."""

    learning_rate: PeakLearningRate = Field(1e-3, description=LEARNING_RATE_HELP)
    schedule: AnySchedule = Field(CosineScheduleConfig(), description="the learning-rate schedule component")
    label_smoothing: float = Field(0.0, ge=0, lt=1, description=LABEL_SMOOTHING_HELP)
    average: AnyAverage = Field(NoAverageConfig(), description="what is validated beside the raw weights; the better of both is kept")


class EncoderTrainingConfig(AdamWTrainingConfig, TextTrainingConfig):
    """One training run of an encoder."""

    optimizer: AnyOptimizer = Field(AdamWConfig(beta2=0.98, eps=1e-8, weight_decay=0.01), description="the optimizer component")
    best_checkpoint_metric: Literal["loss", "accuracy"] = Field("loss", description="validation figure that chooses the kept weights")


class ImageAugmentationConfig(Schema):
    """What is changed in training images at random, in each epoch anew: what it shows stays what it is."""

    shift: int = Field(0, ge=0, description="move an image by up to this many pixels each way; the edge is mirrored")
    crop_scale: float = Field(1.0, gt=0, le=1, description="take a part of the image, its area at least this share of the whole, any place")
    horizontal_flip: bool = Field(False, description="mirror one half of the images, left to right")
    randaugment: int = Field(0, ge=0, le=14, description="operations an image, drawn from 14 (Cubuk et al. 2020)")
    randaugment_magnitude: float = Field(0.3, gt=0, le=1, description="of these operations, 1 being the paper's 30")
    mixup: float = Field(0.0, ge=0, le=1, description="alpha of mixed pairs of images and labels (Zhang et al. 2018); 0 for none")
    cutmix: float = Field(
        0.0, ge=0, le=1, description="alpha of images with a part of another (Yun et al. 2019); with mixup, each image has one of both"
    )


class EarlyExitConfig(ComponentConfig):
    """What every choice of blocks to learn behind has."""

    def weights(self, n_blocks: int) -> tuple[float, ...]:
        """Give the weight of the loss behind each block that has one."""
        return (1.0,)


AnyEarlyExit = Annotated[EarlyExitConfig, Slot("exits", EarlyExitConfig)]


@register_component("exits")
class NoEarlyExitConfig(EarlyExitConfig):
    """The last block's loss alone.

    Cost and use: The usual one.
    """

    kind: Literal["none"] = "none"


@register_component("exits")
class EarlyExitLossConfig(EarlyExitConfig):
    """A loss behind every block through the one output map, for ``decoding.early_exit_threshold``: sum_n w_n L_n of N blocks.

    w_n is n / sum_m m (linear; Schuster et al. 2022, section 3.3) or 1 / N (uniform; Elbayad et al. 2020). Costs the output map's product
    and softmax once a block; the figures of the record are the last block's.

    Cost and use: With a small vocabulary a little of a step's time, and some of the last block's quality; a token that is sure passes fewer
    blocks. linear favours the last block, uniform the first ones. decoding.early_exit_threshold trades the rest: choose it on validation data.
    """

    kind: Literal["linear", "uniform"] = "linear"

    def weights(self, n_blocks: int) -> tuple[float, ...]:
        """Give the weight of the loss behind each block."""
        if self.kind == "uniform":
            return (1 / n_blocks,) * n_blocks
        return tuple(2 * n / (n_blocks * (n_blocks + 1)) for n in range(1, n_blocks + 1))
