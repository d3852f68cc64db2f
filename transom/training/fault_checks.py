"""Checks that no memory or processor of a run corrupts its numbers: equal tensors of ranks are compared, and a gradient is recomputed."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from transom.data.batch import Batch
from transom.data.batch_bytes import batches_from_bytes, batches_to_bytes
from transom.models.base import Network
from transom.parallel.digests import Named, ReplicaError, Replicas, describe_difference, faulty_ranks, gradient_digest
from transom.parallel.mesh import Ranks
from transom.training.out_of_memory import is_out_of_memory

RECOMPUTATION_FACTOR = 10
"""Number of comparisons of digests per recomputation of a gradient, which takes about as long as a step."""


class FaultChecks:
    """Periodic checks of weights, optimizer state and gradients over the ranks of a run.

    Attributes:
        model: the model.
        optimizer: its optimizer.
        ranks: the ranks of the run.
    """

    def __init__(
        self, model: Network, optimizer: torch.optim.Optimizer, ranks: Ranks, every: int, tied: Mapping[str, Sequence[int]] = {}
    ) -> None:
        """Check in one of ``every`` steps; in none if ``every`` is 0 or the run has one process. ``tied`` is as for ``Replicas``."""
        self.model, self.optimizer, self.ranks = model, optimizer, ranks
        self._every = every if ranks.world.size > 1 else 0
        self._replicas = Replicas(model, ranks, tied) if self._every else None  # its process groups are not needed otherwise

    def is_due(self, n_steps: int) -> bool:
        """Return whether digests are compared in the step after ``n_steps`` steps."""
        return self._every > 0 and n_steps % self._every == 0

    def is_recomputation_due(self, n_steps: int) -> bool:
        """Return whether a rank recomputes another's gradient in the step after ``n_steps`` steps; only if ranks have the whole model."""
        period = RECOMPUTATION_FACTOR * self._every
        return self._every > 0 and not self.ranks.splits_model and n_steps % period == period // 2

    def recomputed_rank(self, n_steps: int) -> int:
        """Return the rank whose gradient is recomputed, by the next rank; all ranks take turns."""
        return n_steps // (RECOMPUTATION_FACTOR * self._every) % self.ranks.world.size

    def compare(self, step: int, repeat: Callable[[], None] | None = None) -> None:
        """Compare weights, optimizer state and gradients of all ranks that hold the same of them; all ranks have to take part.

        Args:
            step: number of the step, for messages.
            repeat: computes the summed gradients again; None if there are none.

        Raises:
            ReplicaError: they differ.
        """
        if self._replicas is None:
            return
        self._replicas.compare(self._state(), step)
        if repeat is not None:

            def recompute() -> Named:
                repeat()
                return self._gradients()

            self._replicas.compare(self._gradients(), step, recompute)

    def _state(self) -> Named:
        saved = self.model.state_dict().keys()
        state = {f"buffer {name}": (x, x) for name, x in self.model.named_buffers() if name in saved}
        for name, p in self.model.named_parameters():
            state[f"weight {name}"] = p, p
            state |= {f"optimizer state {name}.{entry}": (p, x) for entry, x in self.optimizer.state.get(p, {}).items()}
        return state

    def _gradients(self) -> Named:
        return {f"gradient of {name}": (p, p.grad) for name, p in self.model.named_parameters() if p.grad is not None}


class Recomputation:
    """The gradient of one rank's part of a batch, which the next rank computes too."""

    def __init__(
        self, checks: FaultChecks, n_steps: int, micro_batches: Sequence[Batch], gradients: Callable[[Sequence[Batch]], float]
    ) -> None:
        """Send the micro-batches of one rank to all, and compute their gradient on the next rank; all ranks do so at the same time.

        Args:
            checks: the checks of the run.
            n_steps: number of steps before this one.
            micro_batches: micro-batches of this rank.
            gradients: adds the gradients of micro-batches and returns their loss.
        """
        self._model, self._optimizer, self._world = checks.model, checks.optimizer, checks.ranks.world
        self._step, self._gradients = n_steps + 1, gradients
        self._rank = checks.recomputed_rank(n_steps)
        self._checker = (self._rank + 1) % self._world.size
        mine = self._world.rank == self._rank
        generator = torch.get_rng_state()
        self._generator = torch.frombuffer(
            bytearray(self._world.broadcast_bytes(bytes(generator.numpy().data), self._rank)), dtype=torch.uint8
        )
        self._micro_batches = batches_from_bytes(self._world.broadcast_bytes(batches_to_bytes(micro_batches) if mine else b"", self._rank))
        self._digest = None
        if self._world.rank == self._checker:
            try:
                self._digest = self._recompute()
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise

    def compare(self, loss: float) -> None:
        """Compare loss and gradient of the rank with those that the next rank has computed, before gradients are summed.

        If they differ, all ranks compute them again.

        Args:
            loss: loss of this rank's micro-batches, of which the model has the gradients.

        Raises:
            ReplicaError: they differ.
        """
        own = gradient_digest(self._model, loss) if self._world.rank == self._rank else self._digest
        entries = torch.cat([torch.zeros(1, dtype=torch.int64) if own is None else own, torch.tensor([own is not None])])
        rows = [row.tolist() for row in self._world.all_gather(entries)]
        pair = sorted((self._rank, self._checker))
        found = {rank: rows[rank][0] for rank in pair}
        if not rows[self._checker][1] or len({*found.values()}) == 1:
            return
        again = {rank: int(each) for rank, each in enumerate(self._world.all_gather(self._recompute()))}
        expected = f"loss and gradient of rank {self._rank}'s samples to be the same when computed"
        raise ReplicaError(describe_difference(expected, self._step, pair, faulty_ranks(found, again)))

    def _recompute(self) -> Tensor:
        """Return the digest of the gradient of the rank's micro-batches; leave random state as it was, and no gradients."""
        self._optimizer.zero_grad(set_to_none=True)
        before = torch.get_rng_state()
        torch.set_rng_state(self._generator)
        try:
            return gradient_digest(self._model, self._gradients(self._micro_batches))
        finally:
            torch.set_rng_state(before)
            self._optimizer.zero_grad(set_to_none=True)
