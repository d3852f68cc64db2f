"""Take training steps with random weights in a child process whose memory is limited: do they fit?"""

import copy
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import transom
from transom.config.architecture import ModelConfig
from transom.config.recipe import parse_model_config
from transom.config.training import TrainingConfig
from transom.errors import TransomError
from transom.models.build import build_model
from transom.planning.freed_memory import give_back_freed_memory
from transom.planning.memory import data_memory, limit_data, peak_memory, reset_peak_memory, used_memory
from transom.planning.precision import choose_precision
from transom.planning.process_state import preserved_process_state
from transom.training.activation_checkpointing import checkpoint_activations
from transom.training.optimizer import build_optimizer
from transom.training.out_of_memory import is_out_of_memory
from transom.training.simulated_step import BatchShape, build_batch, run_step
from transom.training.weight_averaging import WeightAverager

TRIAL_STEPS = 3
"""Steps of a trial: from the second on, the state of the optimizer is there too."""

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Trial:
    """Outcome of a trial.

    Attributes:
        fits: whether all steps were taken.
        before: bytes that the limit counts before model and batch exist: Python, PyTorch and transom.
        resident: largest resident memory above that before model and batch exist. Freed memory is given back to the system.
        seconds: processor seconds of the fastest step.
    """

    fits: bool
    before: int = 0
    resident: int = 0
    seconds: float = 0.0


def try_steps(
    config: ModelConfig, training: TrainingConfig, shape: BatchShape, precision: str, limit: int | None, steps: int = TRIAL_STEPS
) -> Trial:
    """Take steps on full batches in a child process, and report whether they fit.

    Args:
        config: model configuration with known vocabulary sizes.
        training: settings of the optimizer and of weight averaging.
        shape: shape of the batch of one forward pass.
        precision: dtype of the matrix products: fp32 or bf16.
        limit: bytes that the process may have; None for no limit.
        steps: number of steps.

    Raises:
        TransomError: the child process fails for another reason than missing memory.
    """
    request = {
        "model": config.model_dump(mode="json", exclude_unset=True) | {"kind": config.kind},
        "training": training.model_dump(mode="json", include={"optimizer", "average", "activation_checkpointing"}),
        "shape": asdict(shape),
        "precision": precision,
        "limit": limit,
        "steps": steps,
        "threads": torch.get_num_threads(),
    }
    path = os.pathsep.join(filter(None, [str(Path(transom.__file__).parents[1]), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-P", "-m", "transom.training.memory_trial"]
    run = subprocess.run(
        command, input=json.dumps(request), capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, check=False
    )
    if run.returncode < 0:
        return Trial(False)  # killed by the system, or by an allocation that a library does not check
    if run.returncode:
        last = (run.stderr.strip().splitlines() or ["no output"])[-1]
        raise TransomError(f"expected the steps of a trial to run, found {last}; try another model or precision")
    return Trial(**json.loads(run.stdout))


@preserved_process_state()
def take_steps(request: dict[str, Any]) -> Trial:
    """Take the steps of a request in this process; missing memory ends them."""
    config: ModelConfig = parse_model_config(request["model"])
    training = TrainingConfig.model_validate(request["training"])
    shape, dtype = BatchShape(**request["shape"]), choose_precision(request["precision"], _CPU).dtype
    give_back_freed_memory()
    reset_peak_memory(_CPU)
    before, resident, times = data_memory(), used_memory(_CPU), list[float]()
    if request["limit"] is not None:
        limit_data(request["limit"])
    try:
        model = build_model(config).train()
        if training.recompute:
            checkpoint_activations(model)
        validation_copy, averager = copy.deepcopy(model).eval(), WeightAverager(training.average, model)
        optimizer, batch = build_optimizer(model, training.optimizer, dtype), build_batch(config, shape)
        for step in range(1, request["steps"] + 1):
            start = time.process_time()
            run_step(model, batch, dtype, shape)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            averager.after_step()
            averager.after_checkpoint(step)
            times.append(time.process_time() - start)
        del validation_copy
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return Trial(False, before)
    return Trial(True, before, peak_memory(_CPU) - resident, min(times))


def main() -> None:
    """Read a request from standard input, and write its outcome to standard output."""
    request = json.load(sys.stdin)
    torch.set_num_threads(request["threads"])
    sys.stdout.write(json.dumps(asdict(take_steps(request))))


if __name__ == "__main__":
    main()
