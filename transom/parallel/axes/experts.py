"""Expert parallelism: the experts of each mixture are split over the ranks of the ``expert`` axis, and tokens travel to their experts."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh

from transom.layers.context import LayerContext
from transom.layers.dropout import row_keys, rows_keyed_by
from transom.layers.mixture_of_experts import MixtureOfExperts, grouped_experts, run_experts

AXIS = "expert"
"""Axis of the mesh along which the experts are split."""


def apply_expert_parallel(model: nn.Module, mesh: DeviceMesh) -> None:
    """Split the experts of each mixture over the ``expert`` axis, in place: rank r of R keeps experts r N / R to (r + 1) N / R - 1.

    In a forward pass each rank sends its tokens to the ranks of their experts and receives their outputs, by all-to-all (Lepikhin et al.
    2020, section 3). Router and shared experts stay on every rank. Experts keep their names; those of other ranks become None.

    All ranks of the axis must run the same number of forward passes, and of backward passes, since each mixture communicates in each of
    them. Their batches may have any sizes; a rank without tokens takes part too.

    Broadcast initial weights before, since the ranks then hold different experts. Apply ``fully_shard``, on a mesh without this axis, and
    build the optimizer afterwards.
    """
    n_ranks, rank = mesh[AXIS].size(), mesh.get_local_rank(AXIS)
    if n_ranks == 1:
        return
    for mixture in _mixtures(model).values():
        n_experts = mixture.config.n_experts
        assert n_experts % n_ranks == 0, f"expected n_experts divisible by {n_ranks} ranks, found {n_experts}"
        assert mixture.config.capacity_factor is None, "a capacity holds for the tokens of all ranks, which no rank knows"
        mixture.path = partial(grouped_experts, run=_exchange_tokens(mesh.get_group(AXIS)))
        for i in range(n_experts):
            if i // (n_experts // n_ranks) != rank:
                mixture.experts[i] = None  # type: ignore[assignment]  # PyTorch skips missing modules, which keep the numbers of others


def expert_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters of this rank's experts by name: those that the ranks of the ``expert`` axis do not share.

    Their gradients are complete along this axis and are summed over the other axes alone. All other gradients are summed over it too.
    """
    return {
        f"{path}.experts.{name}": parameter
        for path, mixture in _mixtures(model).items()
        for name, parameter in mixture.experts.named_parameters()
    }


def _mixtures(model: nn.Module) -> dict[str, MixtureOfExperts]:
    return {path: module for path, module in model.named_modules() if isinstance(module, MixtureOfExperts)}


def _exchange_tokens(
    group: distributed.ProcessGroup,
) -> Callable[[Sequence[nn.Module | None], Tensor, Sequence[int], LayerContext], Tensor]:
    """Return a function with the interface of ``run_experts`` that runs each expert on the rank of ``group`` that holds it."""

    def run(experts: Sequence[nn.Module | None], x: Tensor, counts: Sequence[int], ctx: LayerContext) -> Tensor:
        local = [expert for expert in experts if expert is not None]
        sent = torch.tensor(counts, device=x.device).view(group.size(), len(local))  # tokens for each expert of each rank
        received = torch.empty_like(sent)  # tokens from each rank for each of the local experts
        distributed.all_to_all_single(received, sent, group=group)
        send, receive = sent.sum(1).tolist(), received.sum(1).tolist()
        arrived = _all_to_all(x, send, receive, group)  # sorted by rank, then by expert
        expert = torch.arange(len(local), device=x.device).repeat(len(received)).repeat_interleave(received.flatten())
        order = expert.argsort(stable=True)
        keys = row_keys()
        own_keys = None if keys is None else _all_to_all(keys, send, receive, group).index_select(0, order)
        with rows_keyed_by(own_keys):
            outputs = run_experts(local, arrived.index_select(0, order), received.sum(0).tolist(), ctx)
        return _all_to_all(outputs.index_select(0, order.argsort()), receive, send, group)

    return run


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, send: list[int], receive: list[int], group: distributed.ProcessGroup) -> Tensor:
        ctx.rest = send, receive, group
        y = x.new_empty(sum(receive), *x.shape[1:])
        distributed.all_to_all_single(y, x.contiguous(), receive, send, group)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        send, receive, group = ctx.rest
        return _all_to_all(grad, receive, send, group), None, None, None


def _all_to_all(x: Tensor, send: list[int], receive: list[int], group: distributed.ProcessGroup) -> Tensor:
    """Send consecutive rows of ``x``, ``send[r]`` of them to rank r, and return those received, ``receive[r]`` of them from rank r."""
    y: Tensor = _AllToAll.apply(x, send, receive, group)  # type: ignore[no-untyped-call]
    return y
