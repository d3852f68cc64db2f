"""Schemas of training settings."""

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
    momentum: float = Field(0.9, ge=0, lt=1, description="fraction of the previous update that is kept")
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
    weight_decay: float = Field(
        0.01, ge=0, description="decoupled weight decay of matrices; biases, norm gains and embeddings are not decayed"
    )


@register_component("optimizer")
class MuonConfig(AdamWConfig):
    """Muon (Jordan et al. 2024) for the attention and feed-forward matrices of blocks; AdamW for the rest, experts and routers included.

    M <- momentum M + (1 - momentum) G; W <- (1 - lr weight_decay) W - 0.2 lr sqrt(max(rows, columns)) orthogonal(G + momentum (M - G)).
    orthogonal(U S V^T) approximates U V^T by five Newton-Schulz steps. The factor of Liu et al. 2025, eq. 4, scales an update to the size
    of AdamW's, so that one learning rate serves both. Small models learn faster per step; the extra time shrinks with larger batches.
    """

    kind: Literal["muon"] = "muon"  # type: ignore[assignment]
    momentum: float = Field(0.95, ge=0, lt=1, description="decay of the running mean of the gradients of matrices")
    weight_decay: float = Field(
        0.1, ge=0, description="decoupled weight decay of matrices; biases, norm gains and embeddings are not decayed"
    )


class ScheduleConfig(ComponentConfig):
    """Base of learning-rate schedules."""

    warmup_steps: int = Field(1000, ge=0, description="steps of linear warmup")


AnySchedule = Annotated[ScheduleConfig, Slot("schedule", ScheduleConfig)]


@register_component("schedule")
class InverseSqrtScheduleConfig(ScheduleConfig):
    """min(step^-0.5, step * warmup^-1.5), scaled so that the peak is ``training.learning_rate`` (Vaswani et al. 2017, eq. 3).

    ``learning_rate = "noam"`` sets the paper's own peak, (d_model * warmup_steps)^-0.5.
    """

    kind: Literal["inverse-sqrt"] = "inverse-sqrt"
    warmup_steps: int = Field(4000, ge=1, description="steps of linear warmup")


@register_component("schedule")
class CosineScheduleConfig(ScheduleConfig):
    """Linear warmup, then half a cosine down to ``min_lr_ratio`` times the peak at the last step."""

    kind: Literal["cosine"] = "cosine"
    min_lr_ratio: float = Field(0.1, ge=0, le=1, description="last learning rate as a fraction of the peak")


@register_component("schedule")
class WarmupStableDecayConfig(ScheduleConfig):
    """Linear warmup, a plateau, and a linear decay to zero over the last steps (Hu et al. 2024)."""

    kind: Literal["wsd"] = "wsd"
    decay_fraction: float = Field(0.2, gt=0, le=1, description="fraction of all steps in which the rate decays")


AnyAverage = Annotated[ComponentConfig, Slot("average")]


@register_component("average")
class NoAverageConfig(ComponentConfig):
    """No averaging: the weights after the last optimizer step."""

    kind: Literal["none"] = "none"


@register_component("average")
class EmaConfig(ComponentConfig):
    """An exponential moving average of the weights, updated per step, with Adam's bias correction.

    After t steps: (1 - decay) sum_i decay^(t - i) w_i / (1 - decay^t). The initial weights w_0 are not included. A validation evaluates the
    raw weights too, in a second pass over the validation data, and keeps the better of both.
    """

    kind: Literal["ema"] = "ema"
    decay: float = Field(0.999, gt=0, lt=1, description="fraction of the previous average that is kept per step")


@register_component("average")
class CheckpointAverageConfig(ComponentConfig):
    """The mean of the weights of the last checkpoints (Vaswani et al. 2017, section 6.1).

    A validation evaluates the raw weights too, in a second pass over the validation data, and keeps the better of both.
    """

    kind: Literal["checkpoints"] = "checkpoints"
    n_checkpoints: int = Field(5, ge=1, description="number of checkpoints")


PeakLearningRate = PositiveRate | Literal["noam"]
LEARNING_RATE_HELP = "peak learning rate, or the paper's (d_model * warmup_steps)^-0.5"
LABEL_SMOOTHING_HELP = "probability spread evenly over the vocabulary, or over the classes (Szegedy et al. 2016)"


class TrainingConfig(Schema):
    """Training settings."""

    max_steps: int = Field(20000, ge=1, description="optimizer steps")
    max_minutes: float | None = Field(
        None,
        gt=0,
        description="stop and save after this many minutes of training; if fewer than max_steps steps fit, warmup and learning-rate"
        " schedule are shortened by the measured time per step, and validations and checkpoints come more often",
    )
    fit_to_data: bool = Field(
        False,
        description="with few training data or minutes, use a smaller model, vocabulary and batch, fewer steps, a shorter warmup and more"
        " frequent validations than the recipe says; fields that you set are not changed",
    )
    grad_accum_steps: int = Field(
        1,
        ge=1,
        description="gradient accumulation: micro-batches per step; changes the result only with batch norm or an expert capacity",
    )
    activation_checkpointing: Literal["none", "blocks"] = Field(
        "none",
        description="activations that are computed again in the backward pass and not kept: none, or those of all Transformer blocks (Chen"
        " et al. 2016), which needs less memory and about a third more time; the result is the same bit for bit",
    )
    compile: Literal["auto", "on", "cuda-graphs", "off"] = Field(
        "auto",
        description="torch.compile of the forward and backward passes: on, off, or auto, which turns it on for one process on a GPU if the"
        " run is forecast to take over ten minutes; the run keeps the choice. cuda-graphs also records the passes of each shape as CUDA"
        " graphs, which spares the launches of small kernels where all batches have few shapes. On a CPU the native kernels were as fast"
        " where this was measured",
    )
    optimizer: AnyOptimizer = Field(AdamConfig(), description="the optimizer component")
    learning_rate: PeakLearningRate = Field("noam", description=LEARNING_RATE_HELP)
    schedule: AnySchedule = Field(InverseSqrtScheduleConfig(), description="the learning-rate schedule component")
    max_grad_norm: float | None = Field(
        1.0, gt=0, description="maximum gradient norm, to which larger gradients are clipped; none for no clipping"
    )
    label_smoothing: float = Field(0.1, ge=0, lt=1, description=LABEL_SMOOTHING_HELP)
    average: AnyAverage = Field(
        CheckpointAverageConfig(), description="averaged weights, validated beside the raw weights; the better of both are kept"
    )
    precision: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        "auto", description="precision of matrix products; auto chooses by the processor's instructions, and the run keeps the choice"
    )
    init_from: str | None = Field(
        None,
        description="run folder to start from: its tokenizer and architecture are used, and its weights wherever names match. A packaged"
        " recipe's own model shape is ignored; fields that you set are changed if the weights allow it, and refused otherwise",
    )
    adapter: LoraConfig | None = Field(
        None, description="with init_from, trains an adapter (lora) instead of all weights, which are frozen"
    )
    seed: int = Field(1, ge=0, lt=2**63, description="seed of initial weights, sample order, dropout and BPE-dropout")
    dropout_rng: Literal["keyed", "generator"] = Field(
        "keyed",
        description="random numbers of dropout: keyed by seed, step, sample and position, the same for any number of micro-batches and"
        " processes; or from PyTorch's generator, which runs begun before 0.1.0 keep",
    )
    validate_every: int = Field(500, ge=1, description="steps between validations")
    best_checkpoint_metric: str = Field("loss", description="validation metric by which the best weights are selected")
    patience: int | None = Field(None, ge=1, description="stop after this many validations without a better one")
    checkpoint_every: int = Field(500, ge=1, description="steps between checkpoints")
    checkpoint_minutes: float | None = Field(
        2.0,
        gt=0,
        description="also write a checkpoint after this many minutes without one, or later if writing would take more than 1% of the time;"
        " none for checkpoints by steps only",
    )
    keep_checkpoints: int = Field(
        0,
        ge=0,
        le=1000,
        description="weights of this many of the last checkpoints by steps are kept for transom average, besides the two newest checkpoints"
        " and those of training.average",
    )
    digest_every: int = Field(
        100,
        ge=0,
        description="steps between comparisons of what several processes hold equally, bit for bit: weights, optimizer state, reduced"
        " gradients; ten times more rarely, another process also recomputes the gradient of one. A difference ends the run and names the"
        " faulty process. 0 turns both off",
    )
    log_every: int = Field(10, ge=1, description="steps between lines of metrics.jsonl")
    tensorboard: bool = Field(False, description="also write TensorBoard events (extra 'log')")

    @property
    def recompute(self) -> bool:
        """Whether blocks compute their activations again in the backward pass."""
        return self.activation_checkpointing == "blocks"


class TextTrainingConfig(TrainingConfig):
    """Training settings of a text model."""

    batch_tokens: int = Field(
        4096, ge=1, description="maximum tokens per batch on its longer side, padding included, over all ranks and micro-batches"
    )


class RDropTrainingConfig(TextTrainingConfig):
    """Training settings of a text model with optional R-Drop."""

    r_drop: float = Field(
        0.0,
        ge=0,
        description="alpha of R-Drop (Liang et al. 2021): two forward passes with different dropout masks, whose outputs are pulled"
        " together by alpha / 4 (KL(p || q) + KL(q || p)); 0 turns it off. Helps with little data in long runs; doubles the time per step",
    )


class AdamWTrainingConfig(TrainingConfig):
    """Base of training settings that by default have a cosine schedule, no label smoothing and no weight averaging."""

    learning_rate: PeakLearningRate = Field(1e-3, description=LEARNING_RATE_HELP)
    schedule: AnySchedule = Field(CosineScheduleConfig(), description="the learning-rate schedule component")
    label_smoothing: float = Field(0.0, ge=0, lt=1, description=LABEL_SMOOTHING_HELP)
    average: AnyAverage = Field(
        NoAverageConfig(), description="averaged weights, validated beside the raw weights; the better of both are kept"
    )


class EncoderTrainingConfig(AdamWTrainingConfig, TextTrainingConfig):
    """Training settings of an encoder."""

    optimizer: AnyOptimizer = Field(AdamWConfig(beta2=0.98, eps=1e-8, weight_decay=0.01), description="the optimizer component")
    best_checkpoint_metric: Literal["loss", "accuracy"] = Field(
        "loss", description="validation metric by which the best weights are selected"
    )


class ImageAugmentationConfig(Schema):
    """Random augmentation of training images, resampled in each epoch."""

    shift: int = Field(0, ge=0, description="maximum shift in pixels in each direction; edges are reflected")
    crop_scale: float = Field(1.0, gt=0, le=1, description="minimum area of a random crop as a fraction of the image")
    horizontal_flip: bool = Field(False, description="flip images left to right with probability 0.5")
    randaugment: int = Field(0, ge=0, le=14, description="operations per image, drawn from 14 (Cubuk et al. 2020)")
    randaugment_magnitude: float = Field(0.3, gt=0, le=1, description="magnitude of these operations; 1 is the paper's 30")
    mixup: float = Field(0.0, ge=0, le=1, description="alpha of mixup (Zhang et al. 2018); 0 for none")
    cutmix: float = Field(0.0, ge=0, le=1, description="alpha of cutmix (Yun et al. 2019); with mixup too, each image gets one of both")


class EarlyExitConfig(ComponentConfig):
    """Base of early-exit losses."""

    def weights(self, n_blocks: int) -> tuple[float, ...]:
        """Return the loss weights of the last blocks, one per block; blocks before these have no loss."""
        return (1.0,)


AnyEarlyExit = Annotated[EarlyExitConfig, Slot("early_exit_loss", EarlyExitConfig)]


@register_component("early_exit_loss")
class NoEarlyExitConfig(EarlyExitConfig):
    """Only the last block has a loss.

    Cost and use: The default.
    """

    kind: Literal["none"] = "none"


@register_component("early_exit_loss")
class EarlyExitLossConfig(EarlyExitConfig):
    """A loss after every block through the shared output projection, for ``decoding.early_exit_threshold``: sum_n w_n L_n of N blocks.

    w_n is n / sum_m m (linear; Schuster et al. 2022, section 3.3) or 1 / N (uniform; Elbayad et al. 2020). The output projection and its
    softmax are computed once per block; logged metrics are those of the last block.

    Cost and use: With a small vocabulary, slightly slower steps and a slightly worse last block; confident tokens skip blocks. linear
    favors the last block, uniform the first ones. Choose decoding.early_exit_threshold on validation data.
    """

    kind: Literal["linear", "uniform"] = "linear"

    def weights(self, n_blocks: int) -> tuple[float, ...]:
        """Return the weights of the losses after each of the ``n_blocks`` blocks."""
        if self.kind == "uniform":
            return (1 / n_blocks,) * n_blocks
        return tuple(2 * n / (n_blocks * (n_blocks + 1)) for n in range(1, n_blocks + 1))
