"""What a checkpoint holds, so that a resumed run is the run that was never stopped, bit for bit."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from transom.errors import CheckpointError
from transom.parallel.world import World


@dataclass
class Progress:
    """Where a run stands, besides its tensors.

    Attributes:
        step: optimizer steps done, skipped ones included.
        position: the loader's whole state.
        seconds: training time over all sittings.
        n_target_tokens: true target tokens seen.
        n_skipped: steps skipped because loss or gradient was not finite.
        skips_in_a_row: of these, the last ones without a good step between.
        best: validation figures of the kept weights, with their ``step``; empty before the first validation.
        best_weights: "raw" or "averaged", whichever the kept weights are; None where the run averages none, or kept none yet.
        validations_since_best: validations without a better one.
        validated_at: step of the last validation.
        window: sums since the last line of metrics.jsonl.
        n_averaged: optimizer steps that the average of weights was told of; 0 in checkpoints of versions that began it at the initial ones.
    """

    step: int = 0
    position: int = 0
    seconds: float = 0.0
    n_target_tokens: int = 0
    n_skipped: int = 0
    skips_in_a_row: int = 0
    best: dict[str, float] = field(default_factory=dict)
    best_weights: str | None = None
    validations_since_best: int = 0
    validated_at: int = 0
    window: dict[str, float] = field(default_factory=dict)
    n_averaged: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return plain data; floats survive exactly."""
        return asdict(self)


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Flatten the optimizer's state to tensors named ``parameter.entry``, parameters by their number."""
    return {f"{number}.{entry}": x for number, entries in optimizer.state_dict()["state"].items() for entry, x in entries.items()}


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put back what ``optimizer_tensors`` gave."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, x in tensors.items():
        number, entry = name.split(".", 1)
        state.setdefault(int(number), {})[entry] = x
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def gather_generators(world: World) -> dict[str, Tensor]:
    """Gather the state of every generator that training draws from, in all processes; each of them must call it."""
    first, *others = world.gathered(torch.get_rng_state())
    states = {"cpu": first, **{f"rank-{rank}.cpu": x for rank, x in enumerate(others, 1)}}
    if torch.cuda.is_available():
        states |= {f"cuda.{i}": x for i, x in enumerate(torch.cuda.get_rng_state_all())}
    return states


def restore_generators(states: Mapping[str, Tensor], rank: int = 0) -> None:
    """Put back what ``gather_generators`` gave of a process."""
    torch.set_rng_state(states[f"rank-{rank}.cpu" if rank else "cpu"])
    for name, x in states.items():
        if name.startswith("cuda."):
            torch.cuda.set_rng_state(x, int(name.removeprefix("cuda.")))


def learned_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Gather what training changes, tied tensors once: the parameters that are not frozen, and those buffers that are saved with them."""
    saved = model.state_dict().keys()
    learning = {name: x for name, x in model.named_parameters() if x.requires_grad}
    return {**learning, **{name: x for name, x in model.named_buffers() if name in saved}}


def restore_learned(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy tensors into the learned ones of the same names; all must be there, in the same shapes."""
    parameters = learned_tensors(model)
    if parameters.keys() != tensors.keys():
        odd = min(parameters.keys() ^ tensors.keys())
        raise CheckpointError(f"expected the parameters of this model, found a difference at {odd!r}; is the checkpoint of another recipe?")
    with torch.no_grad():
        for name, parameter in parameters.items():
            if parameter.shape != tensors[name].shape:
                expected, found = tuple(parameter.shape), tuple(tensors[name].shape)
                raise CheckpointError(f"expected {name} of shape {expected}, found {found}; is the checkpoint of another recipe?")
            parameter.copy_(tensors[name])
