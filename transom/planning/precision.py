"""Choose the dtype of matrix products, the threads and the processes, each with a reason to print."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from transom.config.parallel import ParallelConfig
from transom.errors import ConfigError
from transom.files.cpu_info import cpu_flags
from transom.files.message import phrase

BF16_CPU_FLAGS = ("amx_bf16", "avx512_bf16", "bf16")
"""CPU flags of bfloat16 multiply instructions, as named by Linux on x86 and ARM; other CPUs emulate bfloat16.

Measured with matrix products of 512 to 4,096 columns: 3.7 to 7 times the speed of float32 with AMX, 2.1 to 2.2 times with AVX-512 alone.
The ARM flag follows PyTorch's documentation and was not measured.
"""

_FP16_COMPUTE_CAPABILITY = (7, 0)
"""Minimum compute capability of GPUs that multiply float16 faster than float32."""

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Precision:
    """The dtype of matrix products; weights, statistics, softmax and losses stay in float32.

    Attributes:
        name: value of ``training.precision``: fp32, bf16 or fp16.
        reason: human-readable reason for the choice.
    """

    name: str
    reason: str

    @property
    def dtype(self) -> torch.dtype:
        return _DTYPES[self.name]


@dataclass(frozen=True)
class ThreadPlan:
    """Number of threads, and a line that explains the choice."""

    count: int
    reason: str


@dataclass(frozen=True)
class ProcessPlan:
    """Number of data-parallel processes, threads per process, and a line that explains the choice."""

    count: int
    threads: int
    reason: str = ""


def choose_precision(requested: Literal["auto", "fp32", "bf16", "fp16"], device: torch.device) -> Precision:
    """Choose the dtype of matrix products: ``requested``, or for "auto" the one that this device multiplies fastest.

    The choice depends only on the instructions that the device supports, never on a measurement. A seed therefore gives the same result in
    every process on a machine, whatever else runs.

    Raises:
        ConfigError: ``requested`` is unknown, or float16 on a CPU.
    """
    if requested not in ("auto", *_DTYPES):
        raise ConfigError(f"precision: expected 'auto', {', '.join(map(repr, _DTYPES))}, found {requested!r}; choose one of these")
    if requested == "fp16" and device.type == "cpu":
        raise ConfigError("precision = 'fp16': expected a GPU, found none; set precision to 'bf16', 'fp32' or 'auto'")
    if requested != "auto":
        return Precision(requested, phrase("machine.requested", "{dtype}: requested", dtype=requested))
    return _fastest_on_gpu(device) if device.type == "cuda" else _fastest_on_cpu()


def _fastest_on_gpu(device: torch.device) -> Precision:
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return Precision("bf16", phrase("machine.gpu_bf16", "bf16: this GPU multiplies bf16 in hardware"))
    if torch.cuda.get_device_capability(device) >= _FP16_COMPUTE_CAPABILITY:
        return Precision("fp16", phrase("machine.gpu_fp16", "fp16: this GPU multiplies fp16 in hardware, but not bf16"))
    return Precision("fp32", phrase("machine.gpu_fp32", "fp32: this GPU multiplies neither bf16 nor fp16 faster"))


def _fastest_on_cpu() -> Precision:
    if not torch.backends.mkldnn.is_available():  # the only PyTorch library that uses these instructions
        reason = phrase("machine.no_onednn", "fp32: this PyTorch was built without oneDNN, which multiplies bf16")
        return Precision("fp32", reason)
    flag = next((flag for flag in BF16_CPU_FLAGS if flag in cpu_flags()), None)
    if flag is None:
        return Precision("fp32", phrase("machine.cpu_fp32", "fp32: this CPU has no bf16 instructions"))
    return Precision("bf16", phrase("machine.cpu_bf16", "bf16: this CPU multiplies bf16 in hardware ({flag})", flag=flag))


def choose_threads() -> ThreadPlan:
    """Choose one thread per physical core available to this process, at most the container's CPU limit; OMP_NUM_THREADS overrides both."""
    if (asked := os.environ.get("OMP_NUM_THREADS", "")).isdecimal() and int(asked) > 0:
        return ThreadPlan(int(asked), phrase("machine.threads_set", "threads {count}: OMP_NUM_THREADS is set", count=asked))
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores, cpu_limit = _physical_cores(cpus), _cgroup_cpu_limit()
    if cpu_limit is not None and cpu_limit < cores:
        limited = "threads {count}: this container is limited to {limit} CPUs"
        count = max(1, int(cpu_limit))
        return ThreadPlan(count, phrase("machine.threads_limited", limited, count=str(count), limit=f"{cpu_limit:g}"))
    physical = "threads {count}: physical cores available to this process"
    return ThreadPlan(cores, phrase("machine.threads_physical", physical, count=str(cores)))


def rank_device() -> torch.device:
    """Return the device of this process: a GPU if there is one, by ``LOCAL_RANK`` if several processes share the machine, or the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device


def plan_processes(layout: ParallelConfig, threads: ThreadPlan, device: torch.device, by_torchrun: bool = False) -> ProcessPlan:
    """Divide the machine's threads among the processes of a layout.

    Threads synchronize after each of the thousands of operations of a step, data-parallel processes once per step. On an idle machine one
    process with all threads is as fast or faster. On a busy machine it drops to a third of its speed, while several processes keep three
    quarters.

    Args:
        layout: the layout of the run.
        threads: number of threads for all processes together, or for each if torchrun has started them.
        device: device of this process.
        by_torchrun: whether torchrun has started the processes, perhaps on several machines.

    Raises:
        ConfigError: the layout has more processes than the machine has GPUs or can start.
    """
    n = layout.n_processes
    if device.type == "cuda" and not by_torchrun and n > (gpus := torch.cuda.device_count()):
        raise ConfigError(f"[parallel]: expected at most {gpus} processes, one per GPU, found {layout.description}; lower them")
    if device.type == "cpu" and not by_torchrun and n > (limit := _MAX_PROCESSES_PER_CPU * (os.cpu_count() or 1)):
        raise ConfigError(
            f"[parallel]: expected at most {limit} processes on this machine, {_MAX_PROCESSES_PER_CPU} per CPU, found"
            f" {layout.description}; lower them, or rehearse the layout with transom rehearse"
        )
    threads_per_process = max(1, threads.count // (1 if by_torchrun else n))
    if n == 1:
        return ProcessPlan(1, threads_per_process)
    return ProcessPlan(
        n,
        threads_per_process,
        phrase(
            "machine.processes",
            {
                "one": "{processes} processes with {n} thread each share every batch: {layout}",
                "other": "{processes} processes with {n} threads each share every batch: {layout}",
            },
            processes=n,
            n=threads_per_process,
            layout=layout.description,
        ),
    )


_MAX_PROCESSES_PER_CPU = 4
"""More processes only wait for each other, and each takes about 0.3 GB and several seconds to start; the limit catches typing errors."""


@contextmanager
def num_threads_set_to(count: int) -> Iterator[None]:
    """Set PyTorch's thread count to ``count`` in the block, and restore the previous count afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _physical_cores(cpus: set[int], root: Path = Path("/sys")) -> int:
    """Count the physical cores of ``cpus``; without topology information each CPU counts as a core."""
    cores = set()
    for cpu in cpus:
        siblings = root / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        cores.add(siblings.read_text().strip() if siblings.is_file() else str(cpu))
    return len(cores)


def _cgroup_cpu_limit(root: Path = Path("/sys")) -> float | None:
    """Read the CPU limit of the container in CPUs (cgroup version 2, then 1); None if there is no limit."""
    v2, v1 = root / "fs/cgroup/cpu.max", root / "fs/cgroup/cpu"
    if v2.is_file():
        quota, period = v2.read_text().split()
    elif (v1 / "cpu.cfs_quota_us").is_file():
        quota, period = (v1 / "cpu.cfs_quota_us").read_text(), (v1 / "cpu.cfs_period_us").read_text()
    else:
        return None
    return None if quota.strip() in ("max", "-1") else int(quota) / int(period)
