"""Pipeline parallelism: stages of consecutive blocks on different processes, under the 1F1B schedule of PyTorch.

Each stage computes one micro-batch forward, then one backward, in turn, so that it keeps the activations of at most as many micro-batches
as there are stages (Narayanan et al. 2019, section 3.2; Narayanan et al. 2021, figure 4, without interleaving). With p stages and m
micro-batches of equal time, a stage waits for the fraction (p - 1) / (m + p - 1) of a step (Huang et al. 2019, section 2.3).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, reduce

import torch
from torch import distributed, nn
from torch.distributed import ProcessGroup
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor

from transom.data.batch import Batch, split_rows
from transom.models.base import Network
from transom.parallel.axes.pipeline_split import keep_stage, list_stage_parameters
from transom.parallel.axes.pipeline_stage import Activations, LossFunction, PipelineModule
from transom.parallel.processes.collectives import KEPT, ProcessLostError


def split_micro_batches(micro_batches: Sequence[Batch], n_stages: int) -> list[Batch]:
    """Split the rows of micro-batches evenly so that there are at least ``n_stages``, if they have enough rows.

    The result depends on the rows only, so it is the same on all stages.
    """
    n_parts = -(-n_stages // max(1, len(micro_batches)))
    return [part for batch in micro_batches for part in split_rows(batch, n_parts)]


class Pipeline:
    """One stage of a model that is split over the ranks of a group.

    All ranks of the group call each method, with the same micro-batches: hidden states travel, tokens do not.

    Attributes:
        module: this stage's part of the computation; its ``model`` keeps the names of the whole model. ``fully_shard`` wraps this module,
            after its blocks and before the optimizer is built.
        stages: numbers of the blocks of each stage.
        index: number of this stage.
        parameters: names of the parameters that each stage needs.
    """

    def __init__(
        self, model: Network, group: ProcessGroup, stages: Sequence[range], autocast: Callable[[], torch.autocast], dtype: torch.dtype
    ) -> None:
        """Keep this process's stage of ``model`` and remove all others.

        Args:
            model: the whole model, equal on all ranks; its parameters of other stages are removed.
            group: ranks of the pipeline, one per stage: ``mesh.get_group("pipeline")``.
            stages: numbers of the blocks of each stage, from ``balance_stages``.
            autocast: returns the context in which matrix products use the dtype of the run.
            dtype: dtype of the residual stream.

        Raises:
            ConfigError: the model is of no family that can be split.
        """
        self.group, self.stages, self.index = group, stages, group.rank()
        self.parameters = list_stage_parameters(model, stages)
        keep_stage(model, stages, self.index)
        self.module = PipelineModule(model, stages, self.index, autocast)
        self._dtype = dtype

    @property
    def n_stages(self) -> int:
        """Number of stages."""
        return len(self.stages)

    @cached_property
    def shared(self) -> dict[str, list[int]]:
        """Parameters that several stages have, such as tied embeddings, in one order on all stages, with the numbers of these stages."""
        names = sorted({name for names in self.parameters for name in names})
        owners = {name: [i for i, own in enumerate(self.parameters) if name in own] for name in names}
        return {name: stages for name, stages in owners.items() if len(stages) > 1}

    @property
    def counted(self) -> list[nn.Parameter]:
        """Parameters of this stage that no earlier stage has: over all stages, each parameter of the whole model once."""
        earlier = {name for names in self.parameters[: self.index] for name in names}
        return [p for name, p in self.module.model.named_parameters() if name not in earlier]

    def forward_backward(
        self,
        micro_batches: Sequence[Batch],
        loss: LossFunction,
        sites: Sequence[str] = (),
        carried: Sequence[str] = (),
        n_passes: int = 0,
        n_counted: int | None = None,
    ) -> tuple[float, float]:
        """Compute the gradients of a step, summed over micro-batches, into ``.grad`` of this stage's parameters.

        Those of parameters that several stages have are partial; ``sum_shared_gradients`` adds them.

        With fewer micro-batches than stages or passes, the last one is repeated, without contribution to loss and gradients.

        Args:
            micro_batches: micro-batches of any shapes, on the model's device; at least one.
            loss: computes the loss of a micro-batch on this stage.
            sites: activations of this stage that the loss reads.
            carried: residual streams after blocks (``resid_post``) that the loss on the last stage reads.
            n_passes: number of passes, where other ranks with shards of this stage have more micro-batches.
            n_counted: number of first micro-batches that contribute to loss and gradients; by default all.

        Returns:
            Loss and negative log-likelihood, summed over the micro-batches, equal on all stages.
        """
        n = max(n_passes, self.n_stages, len(micro_batches))
        batches = [*micro_batches, *[micro_batches[-1]] * (n - len(micro_batches))]
        self.module.start(batches, loss, sites, carried, len(micro_batches) if n_counted is None else n_counted)
        with _name_lost_process(self.n_stages):
            self._run(n, backward=True)
            distributed.broadcast(self.module.sums, group=self.group, group_src=self.n_stages - 1)
        summed_loss, nll = self.module.sums.tolist()
        return summed_loss, nll

    def sum_shared_gradients(self) -> None:
        """Sum the gradients of parameters that several stages have over these stages, bit for bit equal on all of them.

        Call this after the gradients of each stage are summed over all other axes, since the order of these sums differs between stages.
        """
        own = dict(self.module.model.named_parameters())
        with _name_lost_process(self.n_stages):
            for name, stages in self.shared.items():
                if self.index in stages and own[name].requires_grad:
                    _sum_gradient(own[name], stages, self.group)

    def record(self, micro_batches: Sequence[Batch], sites: Sequence[str]) -> list[Activations]:
        """Run the model forward on micro-batches, without gradients; return this stage's activations at ``sites`` per micro-batch."""
        n = max(self.n_stages, len(micro_batches))
        self.module.start([*micro_batches, *[micro_batches[-1]] * (n - len(micro_batches))], None, sites)
        with torch.no_grad(), _name_lost_process(self.n_stages):
            self._run(n, backward=False)
        return self.module.recorded[: len(micro_batches)]

    def _run(self, n: int, backward: bool) -> None:
        """Run ``n`` micro-batches through this stage, with buffers of the size of the largest."""
        received, sent = (
            torch.empty(size, dtype=self._dtype, device="meta", requires_grad=backward)
            for size in (self.module.received_size, self.module.sent_size)
        )
        is_first, is_last = self.index == 0, self.module.is_last
        stage = PipelineStage(
            self.module,
            self.index,
            self.n_stages,
            self.module.model.device,
            input_args=() if is_first else (received,),
            output_args=(sent,),
            group=self.group,
        )
        loss = (lambda output, target: output) if backward else None
        schedule = Schedule1F1B(stage, n, loss, scale_grads=False)
        schedule.step(target=torch.empty(n) if backward and is_last else None, return_outputs=False)


@torch.no_grad()
def _sum_gradient(parameter: nn.Parameter, owners: Sequence[int], group: ProcessGroup) -> None:
    """Sum the gradient of a parameter over the stages that have it; a stage without a gradient contributes zeros.

    Each stage sends its gradient to the others, and all add them in the order of the stages, so that the copies stay equal. For the two
    stages of a tied embedding this sends as much as an all-reduce, and it needs no further process group.
    """
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    own = parameter.grad.to_local() if isinstance(parameter.grad, DTensor) else parameter.grad
    own, total = own.contiguous(), own
    gradients = {stage: own if stage == group.rank() else torch.empty_like(own) for stage in owners}
    operations = [
        distributed.P2POp(operation, x, group=group, group_peer=stage)
        for stage, gradient in gradients.items()
        if stage != group.rank()
        for operation, x in ((distributed.isend, own), (distributed.irecv, gradient))
    ]
    for work in distributed.batch_isend_irecv(operations):
        work.wait()
    total.copy_(reduce(torch.add, gradients.values()))


@contextmanager
def _name_lost_process(n_stages: int) -> Iterator[None]:
    """Raise ``ProcessLostError`` if a connection closes, and an error of this stage's own computation as it is.

    The library wraps errors of the computation in RuntimeError; gloo raises one when a connection closes.
    """
    try:
        yield
    except RuntimeError as error:
        if error.__cause__ is not None:
            raise error.__cause__ from None
        if type(error) is not RuntimeError and not isinstance(error, distributed.DistError):
            raise
        raise ProcessLostError(f"expected {n_stages} running pipeline stages, found that a process has exited; {KEPT}") from error
