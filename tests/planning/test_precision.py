"""The choices come with a reason, are the same in every process of a machine, and yield to what was asked for."""

import itertools
import os
import time

import pytest
import torch

from transom.config.parallel import ParallelConfig
from transom.errors import ConfigError
from transom.files.cpu_info import cpu_flags
from transom.planning import precision
from transom.planning.hardware import best_seconds, matmul_rate, measure_peak
from transom.planning.precision import (
    Precision,
    ProcessPlan,
    ThreadPlan,
    choose_precision,
    choose_threads,
    num_threads_set_to,
    plan_processes,
)

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"avx512f", "avx512_bf16", "amx_bf16"}, Precision("bf16", "bf16: this CPU multiplies bf16 in hardware (amx_bf16)")),
        ({"avx512f", "avx512_bf16"}, Precision("bf16", "bf16: this CPU multiplies bf16 in hardware (avx512_bf16)")),
        ({"asimd", "bf16"}, Precision("bf16", "bf16: this CPU multiplies bf16 in hardware (bf16)")),
        ({"avx2", "avx512f", "avx512_vnni"}, Precision("fp32", "fp32: this CPU has no bf16 instructions")),
        (set(), Precision("fp32", "fp32: this CPU has no bf16 instructions")),
    ],
    ids=lambda x: "-".join(sorted(x)) if isinstance(x, set) else None,
)
def test_auto_goes_by_the_processor_s_instructions(monkeypatch, flags, expected):
    monkeypatch.setattr(precision, "cpu_flags", lambda: flags)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    assert choose_precision("auto", CPU) == expected


def test_without_onednn_nothing_multiplies_bfloat16(monkeypatch):
    monkeypatch.setattr(precision, "cpu_flags", lambda: {"avx512_bf16"})
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert choose_precision("auto", CPU) == Precision("fp32", "fp32: this PyTorch was built without oneDNN, which multiplies bf16")


def test_a_busy_machine_changes_no_choice(monkeypatch):
    chosen = []
    for seconds in (iter(range(10**6)), itertools.repeat(0.0)):
        monkeypatch.setattr("transom.planning.hardware.best_seconds", lambda work, device, budget, seconds=seconds: next(seconds) + 1e-3)
        chosen.append(choose_precision("auto", CPU))
    monkeypatch.setattr("transom.planning.hardware.best_seconds", None)
    assert chosen == [choose_precision("auto", CPU)] * 2


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx512_bf16\n\nprocessor\t: 1\nflags\t\t: fpu\n", {"fpu", "avx512_bf16"}),
        ("processor\t: 0\nFeatures\t: fp asimd bf16\n", {"fp", "asimd", "bf16"}),
        ("processor\t: 0\n", set()),
        (None, set()),
    ],
)
def test_flags_are_read_where_linux_tells_them(tmp_path, text, flags):
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    assert cpu_flags(tmp_path / "cpuinfo") == flags


@pytest.mark.parametrize(("wanted", "device"), [("fp32", "cpu"), ("bf16", "cpu"), ("fp16", "cuda")])
def test_what_is_asked_for_is_taken(monkeypatch, wanted, device):
    monkeypatch.setattr(precision, "cpu_flags", None)
    assert choose_precision(wanted, torch.device(device)) == Precision(wanted, f"{wanted}: requested")


def test_float16_needs_a_gpu():
    with pytest.raises(ConfigError, match="precision = 'fp16': expected a GPU, found none; set precision to 'bf16', 'fp32' or 'auto'"):
        choose_precision("fp16", CPU)


@pytest.mark.parametrize(
    ("has_bf16", "capability", "chosen"),
    [(True, (8, 0), torch.bfloat16), (False, (7, 5), torch.float16), (False, (7, 0), torch.float16), (False, (6, 1), torch.float32)],
)
def test_a_gpu_takes_what_its_units_multiply(monkeypatch, has_bf16, capability, chosen):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: has_bf16)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert choose_precision("auto", torch.device("cuda")).dtype == chosen


def test_the_peak_is_a_best_of(monkeypatch):
    monkeypatch.setattr("transom.planning.hardware.BUDGET", 0.01)
    monkeypatch.setattr("transom.planning.hardware.SHAPES", ((8, 8, 8), (64, 64, 64)))
    monkeypatch.setattr("transom.planning.hardware.READ_BYTES", 2**16)
    peak = measure_peak()
    assert peak.flops.keys() == {torch.float32, torch.bfloat16}
    assert all(rate > 1e6 for rate in peak.flops.values())
    assert peak.bandwidth > 1e6


def test_a_process_with_little_memory_measures_small_matrices(monkeypatch):
    """A quarter of 4 MiB holds the first shape, and the second of three matrices of 1 MiB does not fit."""
    shapes = list[tuple[int, int, int]]()
    monkeypatch.setattr("transom.planning.hardware.free_memory", lambda: 2**22)
    monkeypatch.setattr("transom.planning.hardware.matmul_rate", lambda shape, *_: shapes.append(shape) or 1.0)
    monkeypatch.setattr("transom.planning.hardware.SHAPES", ((8, 8, 8), (512, 512, 512), (8, 8, 8)))
    read = list[int]()
    monkeypatch.setattr("transom.planning.hardware.best_seconds", lambda work, *_, **__: read.append(work.__self__.nbytes) or 1.0)
    measure_peak.__wrapped__()
    assert shapes == [(8, 8, 8)] * 2 and read == [2**20]


def test_a_rate_is_two_operations_a_multiply_add(monkeypatch):
    monkeypatch.setattr("transom.planning.hardware.best_seconds", lambda work, device, budget: 0.5)
    assert matmul_rate((2, 3, 5), torch.float32, CPU, 1.0) == 2 * 2 * 3 * 5 / 0.5


def test_the_shortest_time_counts_and_the_first_does_not(monkeypatch):
    times = iter([0, 0, 9, 10, 13, 13, 20, 22, 22, 30, 35, 99])
    monkeypatch.setattr(time, "perf_counter", lambda: next(times))
    with num_threads_set_to(2):
        assert best_seconds(lambda: None, CPU, budget=30) == 2


def test_of_one_thread_the_time_of_other_work_does_not_count():
    with num_threads_set_to(1):
        assert best_seconds(lambda: time.sleep(0.02), CPU, budget=0.03) < 0.01
    with num_threads_set_to(2):
        assert best_seconds(lambda: time.sleep(0.02), CPU, budget=0.03) >= 0.02


@pytest.mark.parametrize(
    ("siblings", "cpus", "cores"),
    [
        (["0", "1"], {0, 1}, 2),
        (["0-1", "0-1", "2-3", "2-3"], {0, 1, 2, 3}, 2),
        (["0-1", "0-1", "2-3", "2-3"], {0, 2, 3}, 2),
        (["0-1", "0-1"], {1}, 1),
        ([], {0, 1, 2}, 3),
    ],
)
def test_hyper_threads_are_not_cores(tmp_path, siblings, cpus, cores):
    for cpu, names in enumerate(siblings):
        folder = tmp_path / f"devices/system/cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(names + "\n")
    assert precision._physical_cores(cpus, tmp_path) == cores


@pytest.mark.parametrize(
    ("files", "share"),
    [
        ({}, None),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4.0),
    ],
    ids=str,
)
def test_a_containers_share_is_read(tmp_path, files, share):
    for name, text in files.items():
        path = tmp_path / "fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert precision._cgroup_cpu_limit(tmp_path) == share


@pytest.mark.parametrize(
    ("cores", "share", "count", "reason"),
    [
        (8, None, 8, "threads 8: physical cores available to this process"),
        (8, 2.5, 2, "threads 2: this container is limited to 2.5 CPUs"),
        (8, 0.5, 1, "threads 1: this container is limited to 0.5 CPUs"),
        (2, 16.0, 2, "threads 2: physical cores available to this process"),
    ],
)
def test_threads_are_cores_within_the_share(monkeypatch, cores, share, count, reason):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(precision, "_physical_cores", lambda cpus: cores)
    monkeypatch.setattr(precision, "_cgroup_cpu_limit", lambda: share)
    assert choose_threads() == precision.ThreadPlan(count, reason)


@pytest.mark.parametrize("value", ["", "0", "-1", "many", "4,2"])
def test_the_environment_has_the_last_word_if_it_says_a_number(monkeypatch, value):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert choose_threads() == precision.ThreadPlan(3, "threads 3: OMP_NUM_THREADS is set")
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    assert "OMP" not in choose_threads().reason


def test_only_processors_that_may_be_used_count(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0}, raising=False)
    assert choose_threads().count == 1


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (1, ProcessPlan(1, 8)),
        (3, ProcessPlan(3, 2, "3 processes with 2 threads each share every batch: data 3")),
        (8, ProcessPlan(8, 1, "8 processes with 1 thread each share every batch: data 8")),
        (20, ProcessPlan(20, 1, "20 processes with 1 thread each share every batch: data 20")),
    ],
)
def test_processes_share_the_threads(monkeypatch, wanted, expected):
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    assert plan_processes(ParallelConfig(data=wanted), ThreadPlan(8, ""), CPU) == expected


def test_no_machine_has_too_many_processes(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    with pytest.raises(ConfigError, match=r"\[parallel\]: expected at most 20 processes on this machine, 4 per CPU, found data 21; lower"):
        plan_processes(ParallelConfig(data=21), ThreadPlan(8, ""), CPU)


def test_each_process_has_a_gpu(monkeypatch):
    gpu = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert plan_processes(ParallelConfig(), ThreadPlan(8, ""), gpu) == ProcessPlan(1, 8)
    assert plan_processes(ParallelConfig(shard=2), ThreadPlan(8, ""), gpu).count == 2
    assert plan_processes(ParallelConfig(shard=4), ThreadPlan(1, ""), gpu, by_torchrun=True) == ProcessPlan(
        4, 1, "4 processes with 1 thread each share every batch: shard 4"
    )
    with pytest.raises(ConfigError, match="expected at most 2 processes, one per GPU, found data 3; lower"):
        plan_processes(ParallelConfig(data=3), ThreadPlan(8, ""), gpu)


def test_threads_come_back():
    before = torch.get_num_threads()
    with pytest.raises(ZeroDivisionError), num_threads_set_to(before + 1):
        assert torch.get_num_threads() == before + 1
        raise ZeroDivisionError
    assert torch.get_num_threads() == before
