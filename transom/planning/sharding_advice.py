"""Say when a model should not be sharded."""

from transom.config.parallel import ParallelConfig
from transom.planning.layout import format_layout

SMALL_BLOCK_SECONDS = 1e-3
"""Time of a block below which FSDP2's own work per module, about a millisecond, is the bottleneck (PyTorch issue 173680)."""


def sharding_advice(whole: ParallelConfig, compute: float, n_blocks: int, sharding: float = 0.0) -> list[str]:
    """Return a sentence against sharding a model that fits a device twice over; empty if sharding costs no time.

    Args:
        whole: the layout without sharding.
        compute: seconds of the computation of a micro-batch, forward and backward.
        n_blocks: number of blocks that compute it.
        sharding: seconds in which the weights and gradients of a micro-batch travel, if known.
    """
    advice = f"do not shard: the model fits a device twice over, use {format_layout(whole)} instead"
    if sharding > compute:
        return [f"{advice}; gathering its weights takes {sharding / compute:.1f} times as long as the computation"]
    block = compute / 3 / max(1, n_blocks)
    if block < SMALL_BLOCK_SECONDS:
        return [f"{advice}; a block computes for {1e3 * block:.2g} ms, less than FSDP2's own work per module (PyTorch issue 173680)"]
    return []
