"""What is asked of the allocator and of oneDNN takes effect, and the user's word comes first."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from transom.planning.memory import keep_made_kernels

HOLES = """
from pathlib import Path
import torch
from transom.planning.memory import give_back_freed_memory, keep_freed_memory
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
if not keep_freed_memory():
    raise SystemExit("no glibc")
before = resident()
blocks = [torch.ones(2**18) for _ in range(200)]  # 1 MiB each
pins = blocks[::20]
del blocks
held = resident() - before
give_back_freed_memory()
print(held >> 20, (resident() - before) >> 20)
"""


def test_holes_between_blocks_are_given_back() -> None:
    run = subprocess.run([sys.executable, "-c", HOLES], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    if run.stderr.strip() == "no glibc":
        return
    held, left = map(int, run.stdout.split())
    assert held > 150 and left < 60, (run.stdout, run.stderr)


def test_the_environment_has_the_last_word_on_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "7")
    keep_made_kernels()
    assert os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == "7"
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY")
    keep_made_kernels()
    assert os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == "4096"
