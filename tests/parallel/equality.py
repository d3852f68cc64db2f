"""A step of a layout against the step of one process: the loss and all gradients, in float64."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from transom.config.adapter import LoraConfig
from transom.config.architecture import ModelConfig
from transom.data.batch import Batch
from transom.layers.attention import Attention
from transom.layers.dropout import Dropout, keyed_dropout, name_dropout_sites
from transom.models.apply_lora import apply_lora
from transom.models.base import Network
from transom.models.build import build_model
from transom.parallel.axes.sequence import split_loss_mask
from transom.parallel.processes.collectives import SINGLE_PROCESS, World
from transom.training.objectives.auxiliary import auxiliary_objectives
from transom.training.objectives.objective import CrossEntropy, Objective, forward_pass

TOLERANCE = 1e-10
CROSS_ENTROPY = CrossEntropy(0.1)


class StepGradients(NamedTuple):
    """Loss of a batch and the gradient of every parameter by name."""

    loss: float
    gradients: dict[str, Tensor]


def build_double(config: ModelConfig, adapter: LoraConfig | None = None) -> Network:
    """Build a model in float64 with dropout everywhere, whose vectors (biases, gains, sinks) are random too, with LoRA or without."""
    torch.manual_seed(1)
    model = build_model(config).double()
    if adapter is not None:
        apply_lora(model, adapter)
    for module in model.modules():
        if isinstance(module, Dropout):
            module.p = 0.25
        elif isinstance(module, Attention):
            module.dropout = 0.25
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim < 2 or name.endswith("lora_b"):
                parameter.add_(torch.randn_like(parameter) / 4)
    name_dropout_sites(model)
    return model


def backward(
    model: Network,
    batch: Batch,
    part: tuple[int, int] = (0, 1),
    objective: Objective = CROSS_ENTROPY,
    world: World = SINGLE_PROCESS,
    n_target_tokens: int | None = None,
) -> float:
    """Compute this rank's part of the gradients of the mean loss, as ``TrainStep`` does; return its part of the loss.

    Args:
        model: the model, in training mode.
        batch: the batch, the same on all ranks that share it.
        part: number of this rank among the ranks that share the batch, and their number.
        objective: the task's objective.
        world: the ranks over whose tokens auxiliary objectives sum.
        n_target_tokens: number of target tokens of the batches of all ranks; by default that of ``batch``.
    """
    n_target_tokens = n_target_tokens or batch.n_target_tokens
    batch = objective.prepare(batch)
    auxiliary = auxiliary_objectives(model, world)
    with keyed_dropout(seed=3, step=1, n_copies=objective.n_copies):
        for each in auxiliary:
            each.prepare([batch])
        forward = forward_pass(model, batch, [*objective.sites, *(site for each in auxiliary for site in each.sites)])
    forward = forward.with_loss_mask(split_loss_mask(batch.loss_mask, *part, objective.n_copies))
    loss = objective.loss(forward).backward_loss / (objective.n_copies * n_target_tokens) + sum(each.loss(forward) for each in auxiliary)
    loss.backward()
    return float(loss.detach())


def single_process(
    config: ModelConfig, batch: Batch, objective: Objective = CROSS_ENTROPY, adapter: LoraConfig | None = None
) -> StepGradients:
    """Return loss and gradients of one process."""
    model = build_double(config, adapter)
    loss = backward(model, batch, objective=objective)
    return StepGradients(loss, gradients_of(model))


def gradients_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the whole gradients by name, zeros where there is none; every rank gathers those that are split."""
    return {name: whole(torch.zeros_like(p) if p.grad is None else p.grad) for name, p in model.named_parameters()}


def whole(x: Tensor) -> Tensor:
    """Return the whole of a tensor, which is gathered if it is split."""
    return (x.full_tensor() if isinstance(x, DTensor) else x).detach()


def assert_equal(found: StepGradients, expected: StepGradients, what: Any = "") -> None:
    """Assert that loss and every gradient differ by at most ``TOLERANCE``."""
    assert abs(found.loss - expected.loss) <= TOLERANCE, f"{what}: loss {found.loss} instead of {expected.loss}"
    assert found.gradients.keys() == expected.gradients.keys()
    for name, gradient in expected.gradients.items():
        assert found.gradients[name].shape == gradient.shape, f"{what}: {name}"
        difference = float((found.gradients[name] - gradient).abs().max())
        assert difference <= TOLERANCE, f"{what}: gradient of {name} differs by {difference}"
