"""The schema of a training run."""

from typing import Annotated, Literal

from pydantic import Field

from transom.config.adapter import Lora
from transom.config.brick import Brick, Schema, Slot
from transom.config.components import component

Rate = Annotated[float, Field(gt=0)]


Optimizer = Annotated[Brick, Slot("optimizer")]


@component("optimizer")
class Sgd(Brick):
    """Stochastic gradient descent with momentum."""

    kind: Literal["sgd"] = "sgd"
    momentum: float = Field(0.9, ge=0, lt=1, description="share of the last update that is kept")
    weight_decay: float = Field(0.0, ge=0, description="L2 penalty added to the gradient")


@component("optimizer")
class Adam(Brick):
    """Adam (Kingma & Ba 2015) with the betas and epsilon of Vaswani et al. 2017, section 5.3."""

    kind: Literal["adam"] = "adam"
    beta1: float = Field(0.9, ge=0, lt=1, description="decay of the gradient's running mean")
    beta2: float = Field(0.98, ge=0, lt=1, description="decay of the squared gradient's running mean")
    eps: float = Field(1e-9, gt=0, description="added to the denominator")


@component("optimizer")
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019), on matrices only."""

    kind: Literal["adamw"] = "adamw"  # type: ignore[assignment]
    weight_decay: float = Field(0.01, ge=0, description="decoupled decay of weight matrices; never of biases, gains or embeddings")


@component("optimizer")
class Muon(AdamW):
    """Muon (Jordan et al. 2024) for the maps of attention and feed-forward in blocks, AdamW for all the rest, experts and routers included.

    M <- momentum M + (1 - momentum) G; W <- (1 - lr weight_decay) W - 0.2 lr sqrt(max(rows, columns)) orthogonal(G + momentum (M - G)).
    orthogonal(U S V^T) is U V^T, nearly, by five Newton-Schulz steps. The factor of Liu et al. 2025, eq. 4, gives an update the size of
    AdamW's, so that both go by one learning rate. A small model learns much more from a step; the larger the batch, the less it costs.
    """

    kind: Literal["muon"] = "muon"  # type: ignore[assignment]
    momentum: float = Field(0.95, ge=0, lt=1, description="share of the matrices' running gradient that is kept")
    weight_decay: float = Field(0.1, ge=0, description="decoupled decay of weight matrices; never of biases, gains or embeddings")


class ScheduleBrick(Brick):
    """What every schedule has."""

    warmup_steps: int = Field(1000, ge=0, description="steps of linear rise")


Schedule = Annotated[ScheduleBrick, Slot("schedule", ScheduleBrick)]


@component("schedule")
class PaperSchedule(ScheduleBrick):
    """min(step^-0.5, step * warmup^-1.5), scaled so that the peak is ``training.learning_rate`` (Vaswani et al. 2017, eq. 3).

    ``learning_rate = "paper"`` takes the paper's own peak, (d_model * warmup_steps)^-0.5.
    """

    kind: Literal["paper"] = "paper"
    warmup_steps: int = Field(4000, ge=1, description="steps of linear rise")


@component("schedule")
class Cosine(ScheduleBrick):
    """Linear rise, then half a cosine down to ``final`` times the peak at the last step."""

    kind: Literal["cosine"] = "cosine"
    final: float = Field(0.1, ge=0, le=1, description="last learning rate as a share of the peak")


@component("schedule")
class WarmupStableDecay(ScheduleBrick):
    """Linear rise, a plateau, and a linear fall to zero over the last share of the steps (Hu et al. 2024)."""

    kind: Literal["wsd"] = "wsd"
    decay: float = Field(0.2, gt=0, le=1, description="share of all steps that the fall takes")


Average = Annotated[Brick, Slot("average")]


@component("average")
class NoAverage(Brick):
    """The weights as the optimizer leaves them."""

    kind: Literal["none"] = "none"


@component("average")
class Ema(Brick):
    """An exponential moving average of the weights, updated each step, corrected for its start as Adam's moments are.

    After t steps: (1 - decay) sum_i decay^(t - i) w_i / (1 - decay^t). The initial weights w_0 are no part of it. A validation measures the
    raw weights too, which takes a second pass over the validation data, and keeps the better of both.
    """

    kind: Literal["ema"] = "ema"
    decay: float = Field(0.999, gt=0, lt=1, description="share of the old average that is kept at a step")


@component("average")
class CheckpointAverage(Brick):
    """The mean of the last checkpoints' weights (Vaswani et al. 2017, section 6.1); a validation measures the raw ones too, as for ema."""

    kind: Literal["checkpoints"] = "checkpoints"
    last: int = Field(5, ge=1, description="how many checkpoints")


Peak = Rate | Literal["paper"]
PEAK = "peak learning rate, or the paper's (d_model * warmup_steps)^-0.5"
SMOOTHING = "probability spread evenly over the vocabulary, or the classes (Szegedy et al. 2016)"


class Training(Schema):
    """One training run."""

    max_steps: int = Field(20000, ge=1, description="optimizer steps")
    max_minutes: float | None = Field(
        None,
        gt=0,
        description="stop, with everything saved, after this many minutes of training; the schedule goes by max_steps all the same",
    )
    accumulate: int = Field(
        1,
        ge=1,
        description="slices a batch is computed in, to save memory; the result is the same, but for batch norm and full experts",
    )
    optimizer: Optimizer = Field(Adam(), description="the optimizer brick")
    learning_rate: Peak = Field("paper", description=PEAK)
    schedule: Schedule = Field(PaperSchedule(), description="the learning-rate schedule brick")
    clip_norm: float | None = Field(1.0, gt=0, description="largest norm of the whole gradient; none to leave it")
    label_smoothing: float = Field(0.1, ge=0, lt=1, description=SMOOTHING)
    average: Average = Field(CheckpointAverage(), description="what is validated beside the raw weights; the better of both is kept")
    precision: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        "auto", description="arithmetic of the matrix products; auto goes by the processor's instructions, and the run keeps the choice"
    )
    processes: int = Field(
        1,
        ge=1,
        description="processes on this machine that share each batch: for use beside other work, where threads stall; alone 1 is best",
    )
    start_from: str | None = Field(
        None,
        description="run folder to start from: its tokenizer, widths and bricks, and weights wherever names agree; else all is fresh. What"
        " a packaged recipe says of the model's shape gives way; what is set besides is changed or, where weights do not allow it, refused",
    )
    adapter: Lora | None = Field(
        None, description="what learns in place of all weights, with start_from: lora; the weights that it is added to are kept"
    )
    seed: int = Field(1, ge=0, lt=2**63, description="seed of initial weights, order, dropout and BPE-dropout")
    validate_every: int = Field(500, ge=1, description="steps between two validations")
    select_by: str = Field("loss", description="validation figure that chooses the kept weights")
    patience: int | None = Field(None, ge=1, description="stop after this many validations without a better one")
    checkpoint_every: int = Field(500, ge=1, description="steps between two checkpoints")
    log_every: int = Field(10, ge=1, description="steps between two lines of metrics.jsonl")
    tensorboard: bool = Field(False, description="also write TensorBoard events (extra 'log')")


class TextTraining(Training):
    """One training run on text."""

    batch_tokens: int = Field(
        4096, ge=1, description="most tokens of a batch on its longer side, padding included, over all ranks and accumulation"
    )


class ConsistentTraining(TextTraining):
    """One training run on text that may read each batch twice."""

    r_drop: float = Field(
        0.0,
        ge=0,
        description="alpha of R-Drop (Liang et al. 2021): each batch is read twice, under two dropouts, and their answers are drawn"
        " together by alpha / 4 (KL(p || q) + KL(q || p)); 0 reads it once. Pays on little data in long runs; a step takes twice the time",
    )


class AdamWTraining(Training):
    """What runs share that learn by AdamW, with no smoothing and no averaging."""

    learning_rate: Peak = Field(1e-3, description=PEAK)
    schedule: Schedule = Field(Cosine(), description="the learning-rate schedule brick")
    label_smoothing: float = Field(0.0, ge=0, lt=1, description=SMOOTHING)
    average: Average = Field(NoAverage(), description="what is validated beside the raw weights; the better of both is kept")


class EncoderTraining(AdamWTraining, TextTraining):
    """One training run of an encoder."""

    optimizer: Optimizer = Field(AdamW(beta2=0.98, eps=1e-8, weight_decay=0.01), description="the optimizer brick")
    select_by: Literal["loss", "accuracy"] = Field("loss", description="validation figure that chooses the kept weights")


class Augmentation(Schema):
    """What is changed in training images at random, in each epoch anew: what it shows stays what it is."""

    shift: int = Field(0, ge=0, description="move an image by up to this many pixels each way; the edge is mirrored")
    zoom: float = Field(1.0, gt=0, le=1, description="take a part of the image, its area at least this share of the whole, any place")
    flip: bool = Field(False, description="mirror one half of the images, left to right")
    randaugment: int = Field(0, ge=0, le=14, description="operations an image, drawn from 14 (Cubuk et al. 2020)")
    magnitude: float = Field(0.3, gt=0, le=1, description="of these operations, 1 being the paper's 30")
    mixup: float = Field(0.0, ge=0, le=1, description="alpha of mixed pairs of images and labels (Zhang et al. 2018); 0 for none")
    cutmix: float = Field(
        0.0, ge=0, le=1, description="alpha of images with a part of another (Yun et al. 2019); with mixup, each image has one of both"
    )


class ExitsBrick(Brick):
    """What every choice of blocks to learn behind has."""

    def weights(self, n_blocks: int) -> tuple[float, ...]:
        """Give the weight of the loss behind each block that has one."""
        return (1.0,)


AnyExits = Annotated[ExitsBrick, Slot("exits", ExitsBrick)]


@component("exits")
class NoExits(ExitsBrick):
    """The last block's loss alone.

    Cost and use: The usual one.
    """

    kind: Literal["none"] = "none"


@component("exits")
class Exits(ExitsBrick):
    """A loss behind every block through the one output map, for ``decoding.exit_threshold``: sum_n w_n L_n of N blocks.

    w_n is n / sum_m m (linear; Schuster et al. 2022, section 3.3) or 1 / N (uniform; Elbayad et al. 2020). Costs the output map's product
    and softmax once a block; the figures of the record are the last block's.

    Cost and use: With a small vocabulary a little of a step's time, and some of the last block's quality; a token that is sure passes fewer
    blocks. linear favours the last block, uniform the first ones. decoding.exit_threshold trades the rest: choose it on validation data.
    """

    kind: Literal["linear", "uniform"] = "linear"

    def weights(self, n_blocks: int) -> tuple[float, ...]:
        """Give the weight of the loss behind each block."""
        if self.kind == "uniform":
            return (1 / n_blocks,) * n_blocks
        return tuple(2 * n / (n_blocks * (n_blocks + 1)) for n in range(1, n_blocks + 1))
