"""The replay of allocations grows as a heap of known blocks must, and needs no memory itself; limits of the system are seen."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from transom.planning.heap import SMALL_BLOCKS, heap_bytes
from transom.planning.memory import _control_group_limits, device_memory

MIB = 1 << 20


def test_blocks_that_live_together_need_their_sum() -> None:
    held = heap_bytes([MIB] * 300)
    assert held is None or 300 * MIB <= held < 302 * MIB


def test_freed_blocks_serve_smaller_ones_and_not_larger_ones() -> None:
    """Ten blocks, every second freed: the gaps hold five of half the size, and none of twice the size."""
    blocks = [8 * MIB] * 10
    freed = [-k for k in range(1, 11, 2)]
    small, large = (heap_bytes([*blocks, *freed, *[size] * 5]) for size in (4 * MIB, 16 * MIB))
    if small is not None and large is not None:
        assert 80 * MIB <= small < 82 * MIB
        assert 160 * MIB <= large < 162 * MIB


def test_slivers_that_small_blocks_take_leave_gaps() -> None:
    """Equal blocks that come and go by turns need more than are alive, as in a training step; without small blocks they need no more."""
    events, n = [MIB] * 2, 2
    for _ in range(200):
        n += 1
        events += [MIB, -(n - 2)]
    held = heap_bytes(events)
    assert held is None or held >= 3 * MIB
    assert min(SMALL_BLOCKS) < 64 < max(SMALL_BLOCKS), "slivers have fewer bytes than the alignment and a smallest block"


def test_a_replay_beyond_all_memory_has_no_result() -> None:
    assert heap_bytes([1 << 60]) is None


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
