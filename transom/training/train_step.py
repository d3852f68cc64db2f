"""One optimizer step: forward and backward over the micro-batches of a batch, gradient clipping, and the update."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transom.config.training import TrainingConfig
from transom.data.batch import Batch, split_rows
from transom.layers.dropout import keyed_dropout, keyed_rows, name_dropout_sites
from transom.models.base import Network
from transom.parallel.axes.pipeline import Pipeline, split_micro_batches
from transom.parallel.axes.sequence import split_loss_mask
from transom.parallel.gradients import Gradients
from transom.parallel.mesh import SINGLE_RANK, Ranks
from transom.planning.flops import FROZEN_WEIGHTS_FACTOR
from transom.planning.freed_memory import FreedMemoryPolicy
from transom.training.compilation import REQUESTS
from transom.training.fault_checks import FaultChecks, Recomputation
from transom.training.objectives.auxiliary import auxiliary_objectives
from transom.training.objectives.objective import Objective, RatioMetric, forward_pass
from transom.training.objectives.shared_negatives import SharedNegatives, share_negatives
from transom.training.out_of_memory import is_out_of_memory, out_of_memory_error, release_memory, unsplittable
from transom.training.pipeline_loss import PipelineLoss


class GeneratorStates:
    """States of the random generators from which a step draws, such as its dropout masks."""

    def __init__(self, device: torch.device) -> None:
        """Read the states of the CPU's generator and of the device's."""
        self._device, self._cpu = device, torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def restore(self) -> None:
        """Set the generators to the states that were read."""
        torch.set_rng_state(self._cpu)
        if self._cuda is not None:
            torch.cuda.set_rng_state(self._cuda, self._device)


@dataclass(frozen=True)
class StepResult:
    """Result of an optimizer step, over the whole batch and all processes.

    Attributes:
        loss: training loss with label smoothing, in nats, summed over the target tokens of the batch without padding.
        nll: negative log-likelihood, in nats, summed over the same tokens.
        n_target_tokens: number of these target tokens.
        grad_norm: norm of the gradient of the mean loss, before clipping.
        flops: FLOPs of the forward and backward passes, padding included.
        skipped: IDs of the samples that made loss or gradient non-finite; empty if the weights were updated.
        aux_metrics: sums, by name, from which the metrics of auxiliary objectives are computed.
        rows: rows of the largest micro-batch of this process.
    """

    loss: float
    nll: float
    n_target_tokens: int
    grad_norm: float
    flops: float
    skipped: tuple[int, ...] = ()
    aux_metrics: Mapping[str, float] = field(default_factory=dict)
    rows: int = 0


class _Gradients(NamedTuple):
    """Loss and negative log-likelihood of a batch, summed over all processes, the micro-batches of this one, and their loss."""

    loss: float
    nll: float
    micro_batches: list[Batch]
    own_loss: float


def clip_grad_norm_(parameters: Iterable[nn.Parameter], max_norm: float) -> float:
    """Clip the gradient norm in place, and return the norm before clipping.

    Like ``torch.nn.utils.clip_grad_norm_``, but without the pass over memory if the norm is small enough.
    """
    parameters = [p for p in parameters if p.grad is not None]
    norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    found = norm.item()
    if not found + 1e-6 <= max_norm:  # also true for NaN
        nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    return found


class TrainStep:
    """Takes optimizer steps with gradient accumulation over micro-batches and processes.

    Gradient accumulation is normalized exactly: the loss is summed over micro-batches and divided once by the number of target tokens of
    the whole batch, over all processes. The update therefore does not depend on how a batch is split.

    If the allocator has no memory left, the step is repeated: first with freed memory given back to the system, if it was kept; then with
    micro-batches of half the rows, as all later steps. The repeated step starts from the same state of the random generators, so that it
    equals a step that had these micro-batches from the start; keyed dropout masks are the same however a batch is split. With auxiliary
    objectives and several processes the error is raised instead.

    Attributes:
        n_steps: number of steps taken so far, skipped ones included, which keys the dropout masks of the next step.
        n_splits: parts into which each micro-batch is split; doubled whenever memory runs out.
        freed_memory: whether freed memory is kept, and a way to give it back.
        objective: the task's training objective.
        auxiliary: objectives of the model's components, which add terms to the loss.
        metrics: metrics of the auxiliary objectives, by their keys in ``metrics.jsonl``.
        need_equal_passes: whether a pass of one rank waits in collectives for passes of ranks with other parts of the batch.
    """

    def __init__(
        self,
        model: Network,
        optimizer: torch.optim.Optimizer,
        training: TrainingConfig,
        dtype: torch.dtype,
        objective: Objective,
        ranks: Ranks = SINGLE_RANK,
        freed_memory: FreedMemoryPolicy | None = None,
        filler: Callable[[], Batch] | None = None,
        pipeline: Pipeline | None = None,
    ) -> None:
        """Keep model and optimizer, and build the auxiliary objectives that the model needs.

        Args:
            model: the model in training mode, with the layout of ``ranks``.
            optimizer: optimizer of the model's parameters.
            training: the recipe's training settings.
            dtype: dtype of the matrix products.
            objective: the task's training objective.
            ranks: the ranks of the run.
            freed_memory: whether freed memory is kept, and a way to give it back; None without one.
            filler: returns any batch of this rank's samples, for a pass that only serves the other ranks; required if ranks need equal
                numbers of passes.
            pipeline: this rank's stage of the model; None if the model is not split into stages.
        """
        self.model = model
        self.optimizer = optimizer
        self.training = training
        self.dtype = dtype
        self.backward_flops_fraction = 1.0 if all(p.requires_grad for p in model.parameters()) else FROZEN_WEIGHTS_FACTOR
        self.ranks, self.pipeline = ranks, pipeline
        self.gradients = Gradients(model, ranks, pipeline) if ranks.world.size > 1 else None
        self._idle: list[Batch] = []
        self.device = model.device
        self.objective = share_negatives(objective, model, ranks.batch)
        self.need_equal_passes = ranks.need_equal_passes or isinstance(self.objective, SharedNegatives)
        self.auxiliary = auxiliary_objectives(model, ranks.tokens, self._record, ranks.stages)
        self.metrics: dict[str, RatioMetric] = {key: ratio for each in self.auxiliary for key, ratio in each.metrics.items()}
        self.sites = [*self.objective.sites, *(site for each in self.auxiliary for site in each.sites)]
        name_dropout_sites(model)
        self.n_steps = 0
        self.n_splits = 1
        self.freed_memory = freed_memory
        self.filler = filler
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=dtype == torch.float16)
        tied = {} if pipeline is None else pipeline.shared
        self.fault_checks = FaultChecks(model, optimizer, ranks, training.digest_every, tied) if ranks.world.size > 1 else None
        if training.compile == "cuda-graphs":
            self._clear_gradients()

    def step(self, micro_batches: Sequence[Batch], learning_rate: float, flops: float = 0.0) -> StepResult:
        """Update the weights once from the micro-batches of one batch.

        A non-finite loss or gradient leaves weights and optimizer unchanged; ``StepResult.skipped`` then lists the samples that caused it.

        Args:
            micro_batches: micro-batches of this process.
            learning_rate: learning rate of this step.
            flops: FLOPs of one forward and backward pass over these micro-batches if all weights were trainable.
        """
        with self._dropout_masks():
            result = self._step(micro_batches, learning_rate, flops)
        self.n_steps += 1
        return result

    def _dropout_masks(self) -> AbstractContextManager[None]:
        """Return a context in which dropout masks are keyed by the number of the next step, unless the run draws them otherwise."""
        training = self.training
        keyed = training.dropout_rng == "keyed"
        return keyed_dropout(training.seed, self.n_steps, self.objective.n_copies) if keyed else nullcontext()

    def _step(self, micro_batches: Sequence[Batch], learning_rate: float, flops: float) -> StepResult:
        """Take a step; arguments as in ``step``."""
        flops *= self.objective.n_copies * self.backward_flops_fraction
        n_target_tokens, flops = self.ranks.batch.all_reduce_scalars(sum(batch.n_target_tokens for batch in micro_batches), flops)
        generators = GeneratorStates(self.device)
        recomputation = self._begin_recomputation(micro_batches, n_target_tokens)
        while (gradients := self._sum_gradients(micro_batches, n_target_tokens)) is None:
            self._clear_gradients()
            release_memory(self.device)
            generators.restore()
            recomputation = None  # micro-batches may have changed
        loss, nll, prepared, own_loss = gradients
        if recomputation is not None:
            recomputation.compare(own_loss)
        grad_norm = self._reduce_and_clip_gradients(partial(self._repeat, micro_batches, n_target_tokens, generators))
        finite = math.isfinite(loss) and math.isfinite(grad_norm)
        self._update(finite, learning_rate)
        measured = {name: value for each in self.auxiliary for name, value in each.after_update(finite).items()}
        return StepResult(
            loss,
            nll,
            int(n_target_tokens),
            grad_norm,
            flops,
            () if finite else self._non_finite_samples(prepared),
            measured,
            max((len(batch.sample_ids) // self.objective.n_copies for batch in prepared), default=0),
        )

    def _reduce_and_clip_gradients(self, repeat: Callable[[], None]) -> float:
        """Sum the gradients over the ranks, and clip their norm; return the norm before clipping.

        ``repeat`` computes the sums again, to find out which of two ranks has a wrong one.
        """
        if self.gradients is not None:
            self.gradients.all_reduce()
            if self.fault_checks is not None and self.fault_checks.is_due(self.n_steps):
                self.fault_checks.compare(self.n_steps + 1, repeat)
        self.scaler.unscale_(self.optimizer)
        max_norm = self.training.max_grad_norm or float("inf")
        if self.gradients is None or self.gradients.are_whole:
            return clip_grad_norm_(self.model.parameters(), max_norm)
        return self.gradients.clip_grad_norm_(max_norm)

    def _record(self, micro_batches: Sequence[Batch], sites: Sequence[str]) -> Iterator[Mapping[str, Sequence[Tensor]]]:
        """Run the model on micro-batches and yield their activations at ``sites``, then make the passes that other ranks need."""
        if self.pipeline is not None:
            yield from self.pipeline.record([*micro_batches, *self._idle], sites)[: len(micro_batches)]
            return
        for batch in micro_batches:
            yield forward_pass(self.model, batch, sites).activations
        for batch in self._idle:
            forward_pass(self.model, batch, sites)

    def _sum_gradients(self, micro_batches: Sequence[Batch], n_target_tokens: float) -> _Gradients | None:
        """Compute the gradients of the mean loss over the whole batch, or return None if memory ran out in any process.

        In that case the next call needs less: freed memory is given back, or micro-batches have half the rows.

        Raises:
            ConfigError: memory ran out, and smaller micro-batches are impossible.
        """
        loss = nll = 0.0
        prepared = list[Batch]()
        failed, parts = False, [part for batch in micro_batches for part in split_rows(batch, self.n_splits)]
        try:
            if self.pipeline is not None:
                parts = split_micro_batches(parts, self.pipeline.n_stages)
            prepared = [self.objective.prepare(batch.to(self.device)) for batch in parts]
            self._idle = idle = self._missing_passes(prepared)
            with self.autocast():
                for each in self.auxiliary:
                    each.prepare(prepared)
            loss, nll = self._forward_backward(prepared, idle, self.objective.n_copies * n_target_tokens)
        except (RuntimeError, MemoryError) as error:
            waiting = self.ranks.splits_model or self.need_equal_passes or (self.auxiliary and self.ranks.world.size > 1)
            if waiting or not is_out_of_memory(error):
                raise  # other ranks wait in a collective of a pass, or of the auxiliary objectives
            failed = True
        largest = max((len(part.sample_ids) for part in parts), default=0)
        problem = unsplittable(self.model, parts, largest) if failed else ""
        freed, copies = self.freed_memory, self.objective.n_copies
        kept, own_loss = freed is not None and freed.kept, loss
        loss, nll, n_failed, n_stuck, n_keeping = self.ranks.world.all_reduce_scalars(loss, nll, failed, bool(problem), kept)
        if not n_failed:
            return _Gradients(loss / copies, nll / copies, prepared, own_loss)
        if n_keeping and freed is not None:
            freed.give_back()
        elif n_stuck:
            raise out_of_memory_error(problem, largest, self.training, self.model.config)
        else:
            self.n_splits *= 2
        return None

    def _repeat(self, micro_batches: Sequence[Batch], n_target_tokens: float, generators: GeneratorStates) -> None:
        """Compute the summed gradients of the step again."""
        self._clear_gradients()
        generators.restore()
        gradients = self._sum_gradients(micro_batches, n_target_tokens)
        assert gradients is not None and self.gradients is not None, "the memory was enough before"
        self.gradients.all_reduce()

    def _begin_recomputation(self, micro_batches: Sequence[Batch], n_target_tokens: float) -> Recomputation | None:
        """Compute the gradients of another rank's part of the batch, if this step is one of those in which that is due."""
        deterministic = self.device.type == "cpu" or (torch.are_deterministic_algorithms_enabled() and self.training.dropout_rng == "keyed")
        deterministic &= self.training.compile not in REQUESTS  # graphs of ranks may be specialized to other shapes
        checks = self.fault_checks
        if checks is None or not deterministic or self.auxiliary or self.need_equal_passes or not checks.is_recomputation_due(self.n_steps):
            return None

        def gradients(others: Sequence[Batch]) -> float:
            parts = [part for batch in others for part in split_rows(batch, self.n_splits)]
            prepared = [self.objective.prepare(batch.to(self.device)) for batch in parts]
            return self._forward_backward(prepared, [], self.objective.n_copies * n_target_tokens)[0]

        return Recomputation(checks, self.n_steps, micro_batches, gradients)

    def _missing_passes(self, prepared: Sequence[Batch]) -> list[Batch]:
        """Return a batch for each pass that other ranks make beyond those of this rank, which has to take part in them."""
        if not self.need_equal_passes:
            return []
        n_missing = max(map(int, self.ranks.batch.all_gather(torch.tensor(len(prepared))))) - len(prepared)
        if not n_missing:
            return []
        if not prepared:
            assert self.filler is not None, "ranks that need equal numbers of passes have a filler"
            prepared = [self.objective.prepare(split_rows(self.filler(), self.n_splits)[0].to(self.device))]
        return [prepared[-1]] * n_missing

    def _forward_backward(self, micro_batches: Sequence[Batch], idle: Sequence[Batch], n_target_tokens: float) -> tuple[float, float]:
        """Add the gradients of micro-batches; return this rank's summed loss and negative log-likelihood.

        The passes over ``idle`` serve other ranks and have weight 0.
        """
        if self.pipeline is not None:
            softcap = self.model.logit_softcap if self.pipeline.module.is_last else None
            stage_loss = PipelineLoss(self.objective, self.auxiliary, n_target_tokens, softcap, self.ranks.loss_part, self.scaler.scale)
            sites, batches = [site for each in self.auxiliary for site in each.sites], [*micro_batches, *idle]
            sums = self.pipeline.forward_backward(batches, stage_loss, sites, self.objective.sites, n_counted=len(micro_batches))
            return sums if self.pipeline.module.is_last else (0.0, 0.0)
        losses = list[Tensor]()
        for batch in micro_batches:
            mean_loss, loss, nll = self._forward(batch, n_target_tokens)
            self._backward(mean_loss)
            losses.append(torch.stack([loss.detach(), nll.detach()]))
        for batch in idle:
            with self.autocast():
                forward = forward_pass(self.model, batch, self.sites)._replace(counted=False)
                idle_loss = self.objective.loss(forward).backward_loss
            (0.0 * idle_loss).backward()
        if not losses:
            return 0.0, 0.0
        loss_sum, nll_sum = map(sum, torch.stack(losses).T.tolist())  # waits for a GPU once, not after each micro-batch
        return loss_sum, nll_sum

    def _forward(self, batch: Batch, n_target_tokens: float) -> tuple[Float[Tensor, ""], Float[Tensor, ""], Float[Tensor, ""]]:
        """Return a micro-batch's contribution to the mean loss of the whole batch, and its summed loss and negative log-likelihood."""
        with self.autocast():
            forward = forward_pass(self.model, batch, self.sites)
            if self.ranks.loss_part[1] > 1:
                own = split_loss_mask(batch.loss_mask, *self.ranks.loss_part, self.objective.n_copies)
                forward = forward.with_loss_mask(own)
            backward_loss, loss, nll = self.objective.loss(forward)
            return backward_loss / n_target_tokens + sum(each.loss(forward) for each in self.auxiliary), loss, nll

    def _backward(self, mean_loss: Float[Tensor, ""]) -> None:
        """Add the gradients of a micro-batch's contribution to the mean loss."""
        self.scaler.scale(mean_loss).backward()

    def _update(self, finite: bool, learning_rate: float) -> None:
        """Update the weights if the step is finite. A loss scaler receives non-finite steps too, skips them itself and lowers its scale."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        if finite or self.scaler.is_enabled():
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self._clear_gradients()

    def _clear_gradients(self) -> None:
        """Free the gradients; with CUDA graphs zero them, because the next pass overwrites what it has returned as a gradient before."""
        keep = self.training.compile == "cuda-graphs"
        for p in self.model.parameters() if keep else ():
            if p.grad is None and p.requires_grad:
                p.grad = torch.zeros_like(p)
        self.optimizer.zero_grad(set_to_none=not keep)

    def autocast(self) -> torch.autocast:
        """Return a context in which matrix products use ``dtype``; weights, their gradients and statistics stay in float32."""
        return torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32)

    def _non_finite_samples(self, micro_batches: Sequence[Batch]) -> tuple[int, ...]:
        """Return the IDs of the batch's samples with non-finite logits; all its sample IDs if no logits are non-finite."""
        non_finite: list[int] = []
        if self.pipeline is not None:  # no rank has the whole model
            samples = [sample for batch in micro_batches for sample in batch.sample_ids]
            return tuple(dict.fromkeys(self.ranks.batch.all_gather_lists(samples)))
        idle = self._missing_passes(micro_batches)
        with torch.no_grad(), self.autocast():
            for batch in micro_batches:
                with keyed_rows(batch.sample_ids, self.device):
                    logits = self.model(batch)
                finite = logits.isfinite().all(-1) | ~batch.loss_mask
                whole_rows = finite.reshape(len(batch.sample_ids), -1).all(-1).tolist()
                non_finite += [sample for sample, whole in zip(batch.sample_ids, whole_rows, strict=True) if not whole]
            for batch in idle:
                with keyed_rows(batch.sample_ids, self.device):
                    self.model(batch)
        non_finite = self.ranks.batch.all_gather_lists(non_finite) or self.ranks.batch.all_gather_lists(
            [sample for batch in micro_batches for sample in batch.sample_ids]
        )
        return tuple(dict.fromkeys(non_finite))
