"""Freed memory is given back or kept as it should be, and the user's word comes first; limits of the system are seen."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from transom.planning import freed_memory
from transom.planning.freed_memory import FreedMemoryPolicy, Room, keep_freed_memory, restored_malloc
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
from transom.planning.freed_memory import give_back_freed_memory, restored_malloc
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
        give_back_freed_memory()
        told()
        raise ZeroDivisionError
except ZeroDivisionError:
    told()
"""

KEEPING = ["mapped heap mapped", "heap heap heap", "mapped mapped mapped", "heap heap mapped"]
"""A process by itself, whose threshold grows by the first block that it frees; while all is kept; while all is given back; afterwards."""


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


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record what malloc is told, and let a step need 1,000 bytes."""
    told = list[str]()
    monkeypatch.setattr(freed_memory, "keep_freed_memory", lambda: told.append("keep") or True)
    monkeypatch.setattr(freed_memory, "give_back_freed_memory", lambda: told.append("give back") or True)
    monkeypatch.setattr(freed_memory, "peak_memory", lambda _: 1000)
    monkeypatch.setattr(freed_memory, "data_memory", lambda: 900)
    return told


@pytest.mark.parametrize(("available", "kept", "shortage"), [(2000, True, ""), (1999, False, "little room")])
def test_freed_memory_is_kept_if_twice_the_peak_of_the_first_steps_fits(
    available: int, kept: bool, shortage: str, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freed_memory, "available_memory", lambda n_processes: available * 3 // n_processes)
    freed = FreedMemoryPolicy(CPU, 3)
    assert calls == ["give back"] and not freed.kept and freed.room is None
    freed.after_step()
    assert freed.room is None, "the optimizer has no state before its first step"
    freed.after_step()
    freed.after_step()
    assert (freed.room, freed.kept, freed.shortage) == (Room(1000, available), kept, shortage)
    assert calls == ["give back", *["keep"] * kept]
    freed.give_back()
    assert (calls[-1], freed.kept, freed.shortage) == ("give back", False, "ran out")


def test_where_malloc_cannot_be_told_nothing_is_said(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """On other systems, and where the user has set the thresholds."""
    monkeypatch.setattr(freed_memory, "give_back_freed_memory", lambda: False)
    monkeypatch.setattr(freed_memory, "available_memory", lambda _: 1)
    freed = FreedMemoryPolicy(CPU)
    for _ in range(3):
        freed.after_step()
    assert calls == [] and freed.room is None and freed.shortage == ""


def test_on_a_gpu_freed_memory_is_kept(calls: list[str]) -> None:
    freed = FreedMemoryPolicy(torch.device("cuda"))
    for _ in range(3):
        freed.after_step()
    assert calls == ["keep"] and freed.room is None and not freed.kept


@pytest.mark.parametrize(("largest", "expected"), [(1 << 40, [1 << 30]), (32 << 20, [1 << 30, 32 << 20])])
def test_earlier_versions_of_glibc_keep_smaller_blocks(largest: int, expected: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Glibc before 2.35 refuses a threshold above 32 MiB."""
    asked = list[int]()

    class Libc:
        def __init__(self, _: object) -> None:
            pass

        def mallopt(self, parameter: int, value: int) -> int:
            if parameter == -3:
                asked.append(value)
                return int(value <= largest)
            return 1

    monkeypatch.setattr(freed_memory.ctypes, "CDLL", Libc)
    for name in ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    assert keep_freed_memory() and asked == expected


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the peak of a process cannot be reset here")
def test_the_peak_is_that_since_it_was_reset() -> None:
    with restored_malloc():
        freed_memory.give_back_freed_memory()
        reset_peak_memory(CPU)
        before = peak_memory(CPU)
        torch.ones(2**26)  # 256 MiB
        assert peak_memory(CPU) - before > 200 << 20
        reset_peak_memory(CPU)
        assert peak_memory(CPU) - before < 100 << 20


def test_processes_share_the_machine_but_not_the_limit_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    held = used_memory(CPU)
    one, four = available_memory(), available_memory(4)
    assert held < one <= device_memory(CPU) and four < one
    monkeypatch.setattr("transom.planning.memory._resource_limits", lambda: [1000])
    assert available_memory() == available_memory(4) == 1000


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
