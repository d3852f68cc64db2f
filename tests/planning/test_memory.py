"""Freed memory is given back or kept as it should be, and the user's word comes first; limits of the system are seen."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from transom.planning import freed_memory
from transom.planning.freed_memory import FreedMemory, restored_malloc
from transom.planning.memory import (
    _control_group_limits,
    available_memory,
    device_memory,
    peak_memory,
    reset_peak_memory,
    used_memory,
)

REPOSITORY, CPU = Path(__file__).parents[2], torch.device("cpu")

HOLES = """
from pathlib import Path
import torch
from transom.planning.freed_memory import keep_freed_memory, trim_malloc
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
if not keep_freed_memory():
    raise SystemExit("no glibc")
before = resident()
blocks = [torch.ones(2**18) for _ in range(200)]  # 1 MiB each
pins = blocks[::20]
del blocks
held = resident() - before
trim_malloc()
print(held >> 20, (resident() - before) >> 20)
"""


def test_holes_between_blocks_are_given_back() -> None:
    run = subprocess.run([sys.executable, "-c", HOLES], capture_output=True, text=True, cwd=REPOSITORY)
    if run.stderr.strip() == "no glibc":
        return
    held, left = map(int, run.stdout.split())
    assert held > 150 and left < 60, (run.stdout, run.stderr)


MAPPED = """
import ctypes
from transom.planning.freed_memory import keep_freed_memory, restored_malloc
libc = ctypes.CDLL(None)
if not hasattr(libc, "mallopt"):
    raise SystemExit("no glibc")
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
def mapped(mib):
    block = libc.malloc(mib << 20)
    flag = ctypes.c_size_t.from_address(block - ctypes.sizeof(ctypes.c_size_t)).value & 2  # a mapping of its own
    libc.free(block)
    return "mapped" if flag else "heap"
def told():
    print(*[mapped(mib) for mib in (31, 31, 100)], flush=True)
told()
try:
    with restored_malloc():
        told()
        keep_freed_memory()
        told()
        raise ZeroDivisionError
except ZeroDivisionError:
    told()
"""

KEEPING = ["mapped heap mapped", "mapped mapped mapped", "heap heap heap", "heap heap mapped"]
"""A process by itself, whose threshold grows by the first block that it frees; while all is given back; while all is kept; afterwards."""


@pytest.mark.long
@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, KEEPING),
        ({"MALLOC_MMAP_THRESHOLD_": "65536"}, ["mapped mapped mapped"] * 4),
        ({"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=65536"}, ["mapped mapped mapped"] * 4),
        ({"GLIBC_TUNABLES": "glibc.malloc.check=0"}, KEEPING),
    ],
    ids=str,
)
def test_the_allocator_is_set_for_a_while_unless_the_environment_says_how(environment: dict[str, str], expected: list[str]) -> None:
    run = subprocess.run([sys.executable, "-c", MAPPED], capture_output=True, text=True, cwd=REPOSITORY, env={**os.environ, **environment})
    if run.stderr.strip() != "no glibc":
        assert run.stdout.splitlines() == expected, run.stderr


@pytest.mark.parametrize(("available", "kept", "shortage"), [(2000, True, ""), (1999, False, "little")])
def test_freed_memory_is_kept_if_twice_the_peak_of_the_first_steps_fits(
    available: int, kept: bool, shortage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = list[str]()
    monkeypatch.setattr(freed_memory, "keep_freed_memory", lambda: calls.append("keep") or True)
    monkeypatch.setattr(freed_memory, "give_back_freed_memory", lambda: calls.append("give back"))
    monkeypatch.setattr(freed_memory, "peak_memory", lambda _: 1000)
    monkeypatch.setattr(freed_memory, "data_memory", lambda: 900)
    monkeypatch.setattr(freed_memory, "available_memory", lambda n_processes: available * 3 // n_processes)
    freed = FreedMemory(CPU, 3)
    assert calls == ["give back"] and not freed.kept and freed.needed is None
    freed.after_step()
    assert freed.needed is None, "the optimizer has no state before its first step"
    freed.after_step()
    freed.after_step()
    assert (freed.needed, freed.available, freed.kept, freed.shortage) == (1000, available, kept, shortage)
    assert calls == ["give back", *["keep"] * kept]
    freed.give_back()
    assert (calls[-1], freed.kept, freed.shortage) == ("give back", False, "ran out")


def test_nothing_is_set_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freed_memory, "_set_thresholds", lambda *_: pytest.fail("malloc is not used"))
    freed = FreedMemory(torch.device("cuda"))
    for _ in range(3):
        freed.after_step()
    assert not freed.kept and freed.needed is None


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the peak of a process cannot be reset here")
def test_the_peak_is_that_since_it_was_reset() -> None:
    with restored_malloc():
        reset_peak_memory(CPU)
        before = peak_memory(CPU)
        torch.ones(2**26)  # 256 MiB
        assert peak_memory(CPU) - before > 200 << 20
        reset_peak_memory(CPU)
        assert peak_memory(CPU) - before < 100 << 20


def test_processes_share_what_is_left() -> None:
    held = used_memory(CPU)
    one, four = available_memory(), available_memory(4)
    assert held < one <= device_memory(CPU) and four < one


def test_the_innermost_limit_of_a_control_group_counts(tmp_path: Path) -> None:
    """Version 2 has one hierarchy and "max" for no limit, version 1 has one per controller and a huge number."""
    membership = tmp_path / "cgroup"
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "memory.max").write_text("5000\n")
    (tmp_path / "a" / "b" / "memory.max").write_text("max\n")
    membership.write_text("0::/a/b\n")
    assert _control_group_limits(membership, tmp_path) == [5000]
    (tmp_path / "memory" / "c").mkdir(parents=True)
    (tmp_path / "memory" / "c" / "memory.limit_in_bytes").write_text("7000\n")
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    membership.write_text("4:cpu,cpuacct:/c\n3:memory:/c\n")
    assert _control_group_limits(membership, tmp_path) == [7000, 9223372036854771712]
    assert _control_group_limits(tmp_path / "none", tmp_path) == []


@pytest.mark.long
def test_a_limit_on_the_data_of_a_process_is_its_memory() -> None:
    program = (
        "import torch; from transom.planning.memory import data_memory, device_memory, limit_data\n"
        "limit = data_memory() + (64 << 20); limit_data(limit); print(device_memory(torch.device('cpu')) == limit)\n"
        'try:\n    torch.ones(1 << 26)\nexcept RuntimeError as error:\n    print("can\'t allocate memory" in str(error))'
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=Path(__file__).parents[2], env=os.environ)
    if sys.platform == "linux":
        assert run.stdout.split() == ["True", "True"], run.stderr
    assert device_memory(torch.device("cpu")) > 0
