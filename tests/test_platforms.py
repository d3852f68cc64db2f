"""Platforms that nobody has run yet, simulated by taking away what they lack: each trains, translates, and says what it falls back to."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from transom.files.cpu_info import cpu_flags

ROOT = Path(__file__).parents[1]

PROGRAM = """
import json, os, pathlib, signal, sys
import multiprocessing.context, torch, pydantic, safetensors.torch, tokenizers, typer, rich, sacrebleu, torch.distributed, tempfile
import sysconfig; sysconfig.get_config_vars()  # read by the true name of the platform
from transom.files import cpu_info
cpuinfo, folder, prelude = sys.argv[1:]
if cpuinfo:
    cpu_info.cpu_flags.__defaults__ = (pathlib.Path(cpuinfo),)
exec(prelude)
from transom.cli.main import main
tiny = ["model.d_model=32", "model.n_heads=2", "model.d_ff=32", "training.max_steps=3", "training.validate_every=3",
        "training.checkpoint_every=3"]
codes = [
    main(["train", "copy", "--out", folder, *(word for field in tiny for word in ("--set", field))]),
    main(["translate", folder, "a b c", "--json"]),
    main(["kernels", "--json"]),
    main(["translate", folder, "a b c", "--precision", "int8"]),
]
print(json.dumps(codes))
"""


class Platform(NamedTuple):
    """A simulated platform.

    Attributes:
        cpuinfo: content of /proc/cpuinfo; None for that of this machine, empty for a system without this file.
        prelude: statements that take away what else the platform lacks.
        environment: environment variables.
        precision: reason for the chosen precision that the training prints; None where it depends on this machine.
        int8: why there is no native decoder, and 8-bit weights are refused.
    """

    cpuinfo: str | None
    prelude: str
    environment: dict[str, str]
    precision: str | None
    int8: str


MACOS = """
for name in ("sched_getaffinity", "posix_fallocate", "posix_fadvise", "memfd_create"):
    delattr(os, name)
sys.platform = "darwin"
torch.backends.mps.is_available = lambda: True
torch.backends.mkldnn.is_available = lambda: False
real = os.open
def open_outside_linux(path, *arguments, **options):
    if isinstance(path, (str, bytes, os.PathLike)) and os.fsdecode(path).startswith(("/proc/", "/sys/")):
        raise FileNotFoundError(2, "No such file or directory", path)
    return real(path, *arguments, **options)
os.open = open_outside_linux
"""

PLATFORMS = {
    "Linux, ARM with bf16": Platform(
        "Features\t: fp asimd asimddp bf16 i8mm\n",
        "",
        {},
        "bf16: this CPU multiplies bf16 in hardware (bf16)",
        "this CPU has no avx512_vnni",
    ),
    "Linux, ARM": Platform("Features\t: fp asimd\n", "", {}, "fp32: this CPU has no bf16 instructions", "this CPU has no avx512_vnni"),
    "Linux, x86, AVX2": Platform(
        "flags\t\t: fpu sse4_2 avx avx2 fma\n", "", {}, "fp32: this CPU has no bf16 instructions", "this CPU has no avx512_vnni"
    ),
    "Linux, no compiler": Platform(
        None, "", {"PATH": "/nowhere", "CXX": ""}, None, "expected a C++ compiler, found none; install g++ or clang++, or set CXX"
    ),
    "macOS, Apple silicon": Platform(
        "", MACOS, {}, "fp32: this PyTorch was built without oneDNN, which multiplies bf16", "this CPU has no avx512_vnni"
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("name", PLATFORMS)
def test_a_simulated_platform_trains_and_translates_and_says_what_it_lacks(tmp_path: Path, name: str) -> None:
    platform, cpuinfo = PLATFORMS[name], tmp_path / "cpuinfo"
    if name == "Linux, no compiler" and "avx512_vnni" not in cpu_flags():
        platform = platform._replace(int8="this CPU has no avx512_vnni")
    if platform.cpuinfo:
        cpuinfo.write_text(platform.cpuinfo)
    place = "" if platform.cpuinfo is None else str(cpuinfo)
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), **platform.environment}
    command = [sys.executable, "-c", PROGRAM, place, str(tmp_path / "run"), platform.prelude]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *_, translation, kernels, codes = done.stdout.splitlines()
    assert json.loads(codes) == [0, 0, 0, 2], done.stderr
    assert json.loads(translation)[0]["source"] == "a b c"
    assert platform.precision is None or f"; {platform.precision}; threads " in done.stderr
    rows: list[dict[str, Any]] = json.loads(kernels)
    (step,) = (row for row in rows if row["operation"] == "decoder_step" and row["path"] == "C++")
    assert platform.int8 in step["missing"]
    refusal = done.stderr.splitlines()[-1]
    assert refusal.startswith("error: ") and platform.int8 in refusal
