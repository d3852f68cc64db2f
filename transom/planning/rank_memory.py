"""Predict the memory of one rank of a layout: weights, gradients, optimizer state and activations."""

from dataclasses import dataclass
from typing import NamedTuple

from transom.config.architecture import ModelConfig, TransformerConfig
from transom.config.parallel import ParallelConfig
from transom.config.training import TrainingConfig
from transom.planning.communication import MicroBatches
from transom.planning.parameters import count_parameters
from transom.planning.stages import Stage, StageParameters
from transom.planning.training_bytes import FLOAT32, TrainingBytes, count_averages, count_optimizer_state, count_trained

GATHERED_BLOCKS = 3
"""Blocks that sharding holds whole at once: the weights of the one that runs and of the next one, and the gradients of one."""


class ActivationBytes(NamedTuple):
    """Bytes that one row of a batch saves for its backward pass, in one process.

    Attributes:
        blocks: by one block of each stack, "encoder" and "decoder".
        block_copies: 16-bit copies of the weights of such a block, which all rows share.
        ends: by embeddings and output layer.
        end_copies: 16-bit copies of the weights of embeddings and output layer.
        buffers: what operations need beside them at the peak.
        loss_buffers: what the loss needs beside them, however many rows there are.
    """

    blocks: dict[str, int]
    block_copies: dict[str, int]
    ends: int
    end_copies: int
    buffers: int
    loss_buffers: int


@dataclass(frozen=True)
class RankBytes(TrainingBytes):
    """Memory of one rank in bytes.

    Attributes:
        gathered: whole weights and gradients of the blocks that sharding gathers.
        validated: whole weights that rank 0 gathers to validate them, when it has neither gradients nor activations.
        building: whole models that the rank has before the layout is applied: its own, and on rank 0 the one that validates.
    """

    gathered: int = 0
    validated: int = 0
    building: int = 0

    @property
    def phases(self) -> dict[str, int]:
        """Bytes of tensors by what the rank does."""
        kept = self.weights + self.validation_copy + self.optimizer + self.average
        return {"in a step": super().tensors + self.gathered, "when it validates": kept + self.validated, "when it starts": self.building}

    @property
    def peak(self) -> str:
        """Phase in which the rank needs the most memory, as in "in a step"."""
        return max(self.phases, key=self.phases.__getitem__)

    @property
    def tensors(self) -> int:
        """Largest number of bytes of tensors at once."""
        return max(self.phases.values())


def count_rank_bytes(
    config: ModelConfig,
    training: TrainingConfig,
    layout: ParallelConfig,
    stage: Stage,
    parameters: StageParameters,
    activations: int,
) -> RankBytes:
    """Count the bytes of one rank; sharding divides weights, gradients, optimizer state and averages (Rajbhandari et al. 2020).

    The rank of the first stage is rank 0, which validates alone: it has a second whole model, and gathers the weights for it.

    Args:
        config: model configuration with known vocabulary sizes.
        training: settings of the optimizer, the averaging of weights and the adapter.
        layout: the layout.
        stage: the stage of the rank.
        parameters: parameters of the rank, before sharding.
        activations: bytes of activations, from ``rank_activations``.
    """
    n, whole = parameters.sharded, FLOAT32 * count_parameters(config).total
    all_trained, averages = count_trained(config, training), count_averages(training)
    trained = round(n * all_trained / count_parameters(config).total)
    splits_weights = layout.n_processes > layout.data * layout.context
    return RankBytes(
        weights=FLOAT32 * n,
        validation_copy=whole if stage.is_first else 0,
        gradients=FLOAT32 * trained,
        optimizer=round(FLOAT32 * trained * count_optimizer_state(config, training) / all_trained),
        average=FLOAT32 * averages * trained,
        activations=activations,
        gathered=FLOAT32 * (GATHERED_BLOCKS * parameters.block + 2 * parameters.ends) if layout.shard > 1 else 0,
        validated=(2 if averages else 1) * whole if stage.is_first and splits_weights else 0,
        building=(2 if stage.is_first else 1) * whole,
    )


def rank_activations(
    config: ModelConfig, layout: ParallelConfig, stage: Stage, micro: MicroBatches, saved: ActivationBytes, activation: int
) -> int:
    """Return the bytes of activations of one rank.

    ``context`` and ``tensor`` divide them (Korthikanti et al. 2022, eq. 4), but for the gathered input of each half of a block, which the
    backward pass needs whole. A stage of a pipeline keeps those of all micro-batches in flight.

    Args:
        config: model configuration.
        layout: the layout.
        stage: the stage of the rank.
        micro: micro-batches of a step.
        saved: bytes of a row in one process.
        activation: bytes per number of hidden states.
    """
    rows_per_part, kept = micro.rows / (layout.tensor * layout.context), 0.0
    for stack, n_blocks in stage.blocks.items():
        kept += n_blocks * (saved.blocks[stack] * rows_per_part + saved.block_copies[stack] / layout.tensor)
        if layout.tensor > 1 and isinstance(config, TransformerConfig):
            gathered = 2 * activation * micro.tokens(stack) * config.d_model / layout.context
            kept += n_blocks * gathered * (1 - 1 / layout.tensor)
    if stage.is_last or not stage.blocks:
        kept += saved.ends * rows_per_part + saved.end_copies
    return round(kept * stage.in_flight(micro.n) + saved.buffers * rows_per_part) + (saved.loss_buffers if stage.is_last else 0)
