"""Digests of the tensors that several ranks hold equally, from which a bit that flipped on one of them is noticed.

In large clusters, memory and processors corrupt numbers without an error (Dixit et al. 2021, "Silent data corruptions at scale"). Copies of
weights, optimizer state and reduced gradients are equal bit for bit, so one 64-bit number per tensor and rank shows a difference.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from transom.errors import TransomError
from transom.models.base import Network
from transom.parallel.axes.sharding import local
from transom.parallel.layouts import split_axes
from transom.parallel.mesh import Ranks
from transom.parallel.processes.collectives import KEPT

CHUNK = 2**18
"""Number of 64-bit words that are weighted at a time."""

Named = Mapping[str, tuple[Tensor, Tensor]]
"""Tensors by a description for messages, each with the parameter or buffer in whose layout it is."""


class ReplicaError(TransomError):
    """Raised when ranks hold or compute different bits of what should be equal."""


def digest(x: Tensor) -> Tensor:
    """Return a 64-bit digest of the bits of a tensor: sum_i (2 i + 1) w_i mod 2^64 over its 64-bit words w_i, as a scalar of int64.

    Flipping bit b of a word changes the sum by 2^b times an odd number, so a single flipped bit always changes the digest. The weights make
    it depend on the order of the words.
    """
    data = local(x).contiguous().reshape(-1).view(torch.uint8)
    if data.numel() % 8 or data.storage_offset() % 8:
        data = torch.cat([data, data.new_zeros(-data.numel() % 8)])
    words = data.view(torch.int64)
    odd = 2 * torch.arange(min(CHUNK, len(words)), device=x.device) + 1
    total = torch.zeros((), dtype=torch.int64, device=x.device)
    for start in range(0, len(words), CHUNK):
        chunk = words[start : start + CHUNK]
        total += (chunk * odd[: len(chunk)]).sum() + 2 * start * chunk.sum()
    return total


def digests(tensors: Iterable[Tensor]) -> Tensor:
    """Return the digests of tensors as a vector on the CPU."""
    found = [digest(x) for x in tensors]
    return torch.stack(found).cpu() if found else torch.zeros(0, dtype=torch.int64)


def gradient_digest(model: nn.Module, loss: float) -> Tensor:
    """Return a digest of this rank's own gradients, and of the loss from which they come, as a vector of one number."""
    each = digests(p.grad for p in model.parameters() if p.grad is not None)
    return digest(torch.cat([each, torch.tensor([loss], dtype=torch.float64).view(torch.int64)])).reshape(1)


class Replicas:
    """The tensors of a model that several ranks hold equally.

    Attributes:
        ranks: the ranks of the run.
    """

    def __init__(self, model: Network, ranks: Ranks, tied: Mapping[str, Sequence[int]]) -> None:
        """Note which ranks hold the same tensors: those that differ only in axes along which a parameter or buffer is not split.

        Args:
            model: the model, in the layout of the run.
            ranks: the ranks of the run.
            tied: names of the parameters that several stages of a pipeline have, with these stages, in one order on all ranks.
        """
        self.ranks, layout = ranks, ranks.layout
        own = dict(model.named_parameters())
        self._tied = {f"copies of {name}": (own.get(name), stages) for name, stages in tied.items()}
        split = split_axes(model, ranks)
        active = frozenset(axis for axis in layout.AXES if getattr(layout, axis) > 1)
        self._holders: dict[Tensor, frozenset[str]] = {p: active - split[p] for p in model.parameters()}
        self._holders |= dict.fromkeys(model.buffers(), active - {"pipeline"})
        ranks.create_groups(self._holders.values())

    def compare(self, tensors: Named, step: int, recompute: Callable[[], Named] | None = None) -> None:
        """Compare the digests of tensors with those of the other ranks; all ranks must do so at the same time.

        Args:
            tensors: tensors of this rank; ranks that hold the same parameters pass the same names in the same order.
            step: number of the step, for messages.
            recompute: computes the tensors again, if they differ, to determine which of two ranks is wrong; None if it is impossible.

        Raises:
            ReplicaError: on all ranks, if any of them differ.
        """
        found = self._gather(tensors)
        if not self._any_rank(any(len({*each}) > 1 for each in found.values())):
            return
        again = found if recompute is None else self._gather(recompute())
        problem = ""
        for name, each in found.items():
            if len({*each}) > 1:
                holders = self._ranks_with(name, tensors)
                faulty = faulty_ranks(*(dict(zip(holders, row, strict=True)) for row in (each, again[name])))
                problem = describe_difference(f"{name} to be the same", step, holders, faulty)
                break
        raise ReplicaError(self._first(problem))

    def _gather(self, tensors: Named) -> dict[str, Sequence[int]]:
        """Return by name the digests of all ranks that hold the same tensor."""
        by_axes: dict[frozenset[str], list[str]] = {}
        for name, (parameter, _) in tensors.items():
            if axes := self._holders[parameter]:
                by_axes.setdefault(axes, []).append(name)
        found: dict[str, Sequence[int]] = {}
        for axes in sorted(by_axes, key=sorted):
            names = by_axes[axes]
            rows = self.ranks.along(axes).all_gather(digests(tensors[name][1] for name in names))
            found |= dict(zip(names, zip(*(row.tolist() for row in rows), strict=True), strict=True))
        return {name: found[name] for name in tensors if name in found} | self._gather_tied(tensors)

    def _gather_tied(self, tensors: Named) -> dict[str, Sequence[int]]:
        """Return, for each parameter that several stages have, the digests of its tensors on these stages."""
        if not self._tied:
            return {}
        copies = [[x for p, x in tensors.values() if p is parameter] for parameter, _ in self._tied.values()]
        rows = self.ranks.stages.all_gather(torch.stack([digest(digests(each)) for each in copies]))
        return {name: [int(rows[stage][i]) for stage in stages] for i, (name, (_, stages)) in enumerate(self._tied.items())}

    def _ranks_with(self, name: str, tensors: Named) -> list[int]:
        """Return the ranks that hold a tensor, or copies of a parameter on several stages."""
        rank, layout = self.ranks.world.rank, self.ranks.layout
        if name in self._tied:
            of_stages = layout.ranks_along(rank, ["pipeline"])
            return [of_stages[stage] for stage in self._tied[name][1]]
        return layout.ranks_along(rank, self._holders[tensors[name][0]])

    def _any_rank(self, condition: bool) -> bool:
        return self.ranks.world.all_reduce_scalars(condition)[0] > 0

    def _first(self, text: str) -> str:
        """Return the text of the first rank that has one."""
        parts = self.ranks.world.all_gather_lists([*text.encode(), 0])
        return bytes(parts).strip(b"\0").split(b"\0")[0].decode()


def faulty_ranks(found: Mapping[int, int], again: Mapping[int, int]) -> list[int]:
    """Return the ranks whose digest is wrong, or all ranks of ``found`` if that is undetermined.

    Right is the digest that more than half of the ranks find again. Without such a majority, the ranks that do not reproduce their own
    digest are wrong.

    >>> faulty_ranks({0: 7, 1: 8}, {0: 7, 1: 7}), faulty_ranks({0: 7, 1: 8}, {0: 7, 1: 9}), faulty_ranks({0: 7, 1: 8}, {0: 7, 1: 8})
    ([1], [1], [0, 1])
    """
    value, votes = Counter(again.values()).most_common(1)[0]
    is_majority = 2 * votes > len(again)
    return [rank for rank, each in found.items() if each != (value if is_majority else again[rank])] or [*found]


def describe_difference(expected: str, step: int, ranks: Sequence[int], faulty: Sequence[int]) -> str:
    """Return the message on ranks that hold or computed different bits, of which ``faulty`` are wrong, or any if these are all."""
    *others, last = map(str, ranks)
    found = "one of them has" if len(faulty) == len(ranks) else "there are"
    wrong = " or ".join(map(str, faulty)) if len(faulty) == len(ranks) else " and ".join(map(str, faulty))
    return (
        f"step {step}: expected {expected} on ranks {', '.join(others)} and {last}, found {found} other bits on rank {wrong}: memory or"
        f" processor of that rank is faulty; {KEPT} on other hardware"
    )
