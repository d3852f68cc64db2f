"""The one owner of two choices, the type of matrix products and the number of threads, each with its reason, to be printed."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from transom.errors import ConfigError
from transom.files.processor import processor_flags

BFLOAT16_UNITS = ("amx_bf16", "avx512_bf16", "bf16")
"""Processor flags of instructions that multiply bfloat16, as Linux spells them on x86 and on ARM; any other processor emulates it.

Measured with matrix products of 512 to 4,096 columns: 3.7 to 7 times float32's speed with AMX, 2.1 to 2.2 times with AVX-512 alone. ARM's
are here by PyTorch's documentation, not by a measurement of ours.
"""

_FLOAT16_UNITS = (7, 0)
"""Compute capability from which GPUs multiply float16 faster than float32."""

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Precision:
    """The type of matrix products; weights, statistics, softmax and losses stay in float32.

    Attributes:
        name: as ``training.precision`` has it: fp32, bf16 or fp16.
        reason: why, for people.
    """

    name: str
    reason: str

    @property
    def dtype(self) -> torch.dtype:
        """PyTorch's type of that name."""
        return _DTYPES[self.name]


@dataclass(frozen=True)
class Threads:
    """How many threads one process should use, and why."""

    count: int
    reason: str


@dataclass(frozen=True)
class Processes:
    """How many processes share a training's batches, how many threads each has, and a sentence on it where there are several."""

    count: int
    threads: int
    reason: str = ""


def choose_precision(wanted: Literal["auto", "fp32", "bf16", "fp16"], device: torch.device) -> Precision:
    """Choose the type of matrix products: what is ``wanted``, or the one that this device multiplies fastest.

    The choice depends on the device's instructions alone, never on a timing: the same seed gives the same text in every process of a
    machine, whatever runs beside it.

    Raises:
        ConfigError: float16 is wanted on a CPU.
    """
    if wanted not in ("auto", *_DTYPES):
        raise ConfigError(f"precision: expected auto, {', '.join(_DTYPES)}, found {wanted!r}")
    if wanted == "fp16" and device.type == "cpu":
        raise ConfigError("precision: fp16 needs a GPU, found none; take bf16, fp32 or auto")
    if wanted != "auto":
        return Precision(wanted, f"{wanted}: asked for")
    return _fastest_on_gpu(device) if device.type == "cuda" else _fastest_on_cpu()


def _fastest_on_gpu(device: torch.device) -> Precision:
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return Precision("bf16", "bf16: this GPU multiplies it in hardware")
    if torch.cuda.get_device_capability(device) >= _FLOAT16_UNITS:
        return Precision("fp16", "fp16: this GPU multiplies it in hardware, and not bf16")
    return Precision("fp32", "fp32: this GPU multiplies neither bf16 nor fp16 faster")


def _fastest_on_cpu() -> Precision:
    if not torch.backends.mkldnn.is_available():  # the one library of PyTorch's that uses these instructions
        return Precision("fp32", "fp32: this PyTorch was built without oneDNN, which multiplies bf16")
    unit = next((flag for flag in BFLOAT16_UNITS if flag in processor_flags()), None)
    if unit is None:
        return Precision("fp32", "fp32: this processor has no instructions for bf16")
    return Precision("bf16", f"bf16: this processor multiplies it in hardware ({unit})")


def choose_threads() -> Threads:
    """Choose one thread a physical core that this process may run on, within a container's share; OMP_NUM_THREADS has the last word."""
    if (asked := os.environ.get("OMP_NUM_THREADS", "")).isdecimal() and int(asked) > 0:
        return Threads(int(asked), f"threads {asked}: OMP_NUM_THREADS is set")
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores, share = _physical_cores(cpus), _container_share()
    if share is not None and share < cores:
        return Threads(max(1, int(share)), f"threads {max(1, int(share))}: this container's share of the processor is {share:g}")
    return Threads(cores, f"threads {cores}: physical cores available to this process")


def share_processors(wanted: int, threads: Threads, device: torch.device) -> Processes:
    """Deal the machine's threads out to the processes that a recipe wants.

    Threads wait for the slowest of them after each of a step's thousands of operations, processes once a step. Alone on the machine one
    process with all threads is as fast or faster; beside other work it falls to a third, and several keep three quarters of their speed.

    Args:
        wanted: processes that share each batch.
        threads: of the whole machine.
        device: where the model is; on a GPU one process has all of it.

    Raises:
        ConfigError: several are wanted on a GPU, or more than the machine can begin.
    """
    if device.type != "cpu":
        if wanted > 1:
            raise ConfigError(f"training.processes: expected 1 on a GPU, found {wanted}; processes share a batch on a CPU only")
        return Processes(1, threads.count)
    if wanted > (most := _PROCESSES_A_PROCESSOR * (os.cpu_count() or 1)):
        raise ConfigError(
            f"training.processes: expected at most {most} on this machine, {_PROCESSES_A_PROCESSOR} a processor, found {wanted}; lower it"
        )
    each = max(1, threads.count // wanted)
    if wanted == 1:
        return Processes(1, each)
    return Processes(wanted, each, f"{wanted} processes of {each} {'thread' if each == 1 else 'threads'} share each batch")


_PROCESSES_A_PROCESSOR = 4
"""More only wait for each other, and each takes some 0.3 GB and seconds to begin: a slip of the pen would stop the machine."""


@contextmanager
def using_threads(count: int) -> Iterator[None]:
    """Let PyTorch use ``count`` threads meanwhile."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _physical_cores(cpus: set[int], system: Path = Path("/sys")) -> int:
    """Count cores, not hyper-threads, among ``cpus``; where the system does not say, each counts."""
    cores = set()
    for cpu in cpus:
        siblings = system / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        cores.add(siblings.read_text().strip() if siblings.is_file() else str(cpu))
    return len(cores)


def _container_share(system: Path = Path("/sys")) -> float | None:
    """Read the processors' worth of time that a container may use (cgroup version 2, then 1); None where there is no limit."""
    two, one = system / "fs/cgroup/cpu.max", system / "fs/cgroup/cpu"
    if two.is_file():
        quota, period = two.read_text().split()
    elif (one / "cpu.cfs_quota_us").is_file():
        quota, period = (one / "cpu.cfs_quota_us").read_text(), (one / "cpu.cfs_period_us").read_text()
    else:
        return None
    return None if quota.strip() in ("max", "-1") else int(quota) / int(period)
