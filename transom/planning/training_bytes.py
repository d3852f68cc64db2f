"""Bytes that training keeps per device: weights, gradients, optimizer state, averaged weights and activations, sharded or not."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from transom.config.architecture import ModelConfig, TransformerConfig
from transom.config.schema import ComponentConfig
from transom.config.training import CheckpointAverageConfig, EmaConfig, MuonConfig, SgdConfig, TrainingConfig
from transom.planning.adapters import count_adapter_parameters
from transom.planning.parameters import count_parameters, sum_by_name

Sharding = Literal["none", "optimizer", "full"]
"""Division of the state among the devices (Rajbhandari et al. 2020, ZeRO, figure 1): nothing, the optimizer state (stage 1), or optimizer
state, gradients and weights (stage 3)."""

WORKSPACE_FRACTION = 0.055
"""Memory beside the tensors of a step on a CPU, as a fraction of them: buffers of operations, and small blocks that malloc keeps.

Measured 2026-11-28 with PyTorch 2.13 on Linux for 41 random recipes of 2 to 6 GiB: -0.01 to 0.07, median 0.01 (log/2026-11-28-memory.md).
"""

LIBRARY_BYTES = 64 << 20
"""Resident memory of a process on a CPU that comes with its first steps, beside tensors: pages of the libraries, and their buffers.

Measured 2026-11-27 with PyTorch 2.13 on Linux: 65 MiB with one thread.
"""

FLOAT32 = 4
"""Bytes per number of weights, gradients and optimizer state, in every precision: only matrix products and activations use 16 bits."""


@dataclass(frozen=True)
class StepMemory:
    """Memory of one training step on one device besides weights and optimizer state, in bytes.

    Attributes:
        saved: distinct tensors that the forward pass of the model saves for the backward pass, without weights.
        forward: what is alive when the loss is computed, without gradients of earlier micro-batches.
        peak: largest number of bytes alive at once from the first forward pass to the last gradient, gradients included.
        gradients: gradients of all weights that are trained.
        largest: largest single tensor.
        begin: ``peak`` until the backward pass of the last block ends; 0 without blocks.
        end: ``peak`` after that.
    """

    saved: int
    forward: int
    peak: int
    gradients: int
    largest: int
    begin: int = 0
    end: int = 0

    def activations(self, sharding: Sharding, recompute: bool = False) -> int:
        """Return the bytes beside the gradients at the peak: activations, 16-bit copies of the weights, logits and temporary tensors.

        Gradients that are sharded as they come do not move the peak to the end of the backward pass: it is at the loss or later. Blocks
        that are computed again, with ``recompute``, then have the activations of one of them beside the inputs of all.
        """
        beside = self.peak - self.gradients
        if sharding != "full":
            return beside
        return max(self.forward, self.saved + max(self.end - self.gradients, 0) if recompute else beside)


@dataclass(frozen=True)
class TrainingBytes:
    """Memory of training per device, in bytes.

    Attributes:
        weights: the weights, in float32.
        validation_copy: the copy of the weights that validation uses.
        gradients: one number per trained weight.
        optimizer: state of the optimizer, such as the two moments of Adam.
        average: the moving average of the weights, or the weights of the averaged checkpoints.
        activations: what a step needs at its peak beside all of these.
        workspace: buffers of operations, and blocks that malloc keeps; 0 on a GPU.
        libraries: what PyTorch and its libraries load and reserve when they first compute; 0 on a GPU.
    """

    weights: int
    validation_copy: int
    gradients: int
    optimizer: int
    average: int
    activations: int
    workspace: int = 0
    libraries: int = 0

    @property
    def tensors(self) -> int:
        """Largest number of bytes of tensors at once."""
        return self.weights + self.validation_copy + self.gradients + self.optimizer + self.average + self.activations

    @property
    def total(self) -> int:
        """Largest number of bytes at once."""
        return self.tensors + self.workspace + self.libraries


def count_training_bytes(
    config: ModelConfig, training: TrainingConfig, activations: int, devices: int = 1, sharding: Sharding = "none"
) -> TrainingBytes:
    """Count the bytes that training needs per device.

    Args:
        config: model configuration with known vocabulary sizes.
        training: settings of the optimizer, the averaging of weights and the adapter.
        activations: bytes of activations on one device, ``StepMemory.activations`` of the sharding.
        devices: number of devices that share the work.
        sharding: what the devices divide among themselves.
    """
    n, trained = count_parameters(config).total, count_trained(config, training)
    shards, state_shards = (devices if sharding == "full" else 1), (devices if sharding != "none" else 1)
    return TrainingBytes(
        weights=FLOAT32 * _share(n, shards),
        validation_copy=FLOAT32 * _share(n, shards),
        gradients=FLOAT32 * _share(trained, shards),
        optimizer=FLOAT32 * _share(count_optimizer_state(config, training), state_shards),
        average=FLOAT32 * count_averages(training) * _share(trained, state_shards),
        activations=activations,
    )


def can_recompute(config: ModelConfig, training: TrainingConfig) -> bool:
    """Return whether ``training.activation_checkpointing = 'blocks'`` would save memory: the model has blocks, and it is not set."""
    return isinstance(config, TransformerConfig) and not training.recompute


def count_averages(training: TrainingConfig) -> int:
    """Count the copies of the trained weights that averaging keeps."""
    match training.average:
        case EmaConfig():
            return 1
        case CheckpointAverageConfig(n_checkpoints=n):
            return n
    return 0


def count_trained(config: ModelConfig, training: TrainingConfig) -> int:
    """Count the parameters that training changes: all, or those of the adapter."""
    if training.adapter is not None:
        return count_adapter_parameters(config, training.adapter)
    return count_parameters(config).total


def count_optimizer_state(config: ModelConfig, training: TrainingConfig) -> int:
    """Count the numbers that the optimizer keeps between steps: per weight 2 for Adam, 1 for momentum, 1 or 2 for Muon.

    Muon keeps one per weight of the matrices of attention and feed-forward networks, and AdamW's two for all other weights.
    """
    n, optimizer = count_trained(config, training), training.optimizer
    if isinstance(optimizer, SgdConfig):
        return n if optimizer.momentum else 0
    if isinstance(optimizer, MuonConfig):
        return 2 * n - (n if training.adapter is not None else _count_muon_weights(config))
    return 2 * n


def describe_optimizer(optimizer: ComponentConfig, state: int, trained: int) -> str:
    """Return a phrase on the optimizer's state, such as "adam: 2 numbers per weight"."""
    return f"{optimizer.kind}: {state / trained:.3g} numbers per weight"


def _count_muon_weights(config: ModelConfig) -> int:
    sizes = sum_by_name(config, _matrix_size)
    excluded = (".ff.experts.", ".ff.shared.", ".ff.router.", ".depth.")
    return sum(size for name, size in sizes.items() if ".blocks." in name and not any(part in name for part in excluded))


def _matrix_size(parameter: Tensor) -> int:
    return parameter.numel() if parameter.ndim == 2 else 0


def _share(n: int, devices: int) -> int:
    """Return the numbers per device, rounded up."""
    return -(-n // devices)
