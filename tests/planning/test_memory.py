"""What is asked of the allocator takes effect while it should, and the user's word comes first."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]

HOLES = """
from pathlib import Path
import torch
from transom.planning.memory import trim_malloc, raise_malloc_thresholds
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
if not raise_malloc_thresholds():
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
from transom.planning.memory import raised_malloc_thresholds
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
    with raised_malloc_thresholds():
        told()
        raise ZeroDivisionError
except ZeroDivisionError:
    told()
"""

KEEPING = ["mapped heap mapped", "heap heap heap", "heap heap mapped"]
"""A process by itself, whose threshold grows by the first block that it frees; while all is kept; afterwards."""


@pytest.mark.long
@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, KEEPING),
        ({"MALLOC_MMAP_THRESHOLD_": "65536"}, ["mapped mapped mapped"] * 3),
        ({"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=65536"}, ["mapped mapped mapped"] * 3),
        ({"GLIBC_TUNABLES": "glibc.malloc.check=0"}, KEEPING),
    ],
    ids=str,
)
def test_the_allocator_keeps_memory_for_a_while_unless_the_environment_says_how(environment: dict[str, str], expected: list[str]) -> None:
    run = subprocess.run([sys.executable, "-c", MAPPED], capture_output=True, text=True, cwd=REPOSITORY, env={**os.environ, **environment})
    if run.stderr.strip() != "no glibc":
        assert run.stdout.splitlines() == expected, run.stderr
