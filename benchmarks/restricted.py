"""Run a command with the instruction sets of an older processor.

    python -m benchmarks.restricted {avx2,avx512} COMMAND ...
    python -m benchmarks.restricted avx2 python -m benchmarks.training_paths --out benchmarks/results/training_paths-avx2.json

`avx2` has neither AVX-512 nor AMX, and `avx512` has AVX-512 with VNNI, but no bfloat16 instructions. transom and the benchmarks read
/proc/cpuinfo, which the command sees without the other flags. PyTorch, oneDNN and MKL obey environment variables, and the C++ compiler's
`-march=native` is replaced. Clock rate, caches and memory are those of this processor, so the figures describe a class of processors, not a
specific model. Linux only: it needs `unshare` and the permission to create a mount namespace.
"""

import argparse
import os
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from benchmarks.measure import RESTRICTION


class Restriction(NamedTuple):
    """A kind of processor.

    Attributes:
        missing: pattern of the flags in /proc/cpuinfo that it lacks.
        march: the compiler's name of such a processor.
        variables: environment variables that restrict PyTorch, oneDNN and MKL.
    """

    missing: str
    march: str
    variables: dict[str, str]


RESTRICTIONS = {
    "avx2": Restriction(
        r"amx\w*|avx512\w*|avx_vnni",
        "haswell",
        {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    ),
    "avx512": Restriction(
        r"amx\w*|avx512_(bf16|fp16)|avx_vnni",
        "cascadelake",
        {"ATEN_CPU_CAPABILITY": "avx512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI", "MKL_ENABLE_INSTRUCTIONS": "AVX512"},
    ),
}


COMPILER = """#!/bin/bash
for argument in "${{@/-march=native/-march={march}}}"; do
    case $argument in -mamx-*|-mavx512bf16) ;; *) arguments+=("$argument");; esac
done
exec {gcc} "${{arguments[@]}}"
"""
"""A compiler without the options that Inductor chooses by the flags of the real processor."""


def restricted_command(kind: str, command: list[str], folder: Path) -> tuple[list[str], dict[str, str]]:
    """Write the compiler and the /proc/cpuinfo of ``RESTRICTIONS[kind]`` to a folder; return a command line and its environment.

    Raises:
        SystemExit: this system lacks a program.
    """
    restriction, programs = RESTRICTIONS[kind], {name: shutil.which(name) for name in ("unshare", "mount", "g++")}
    if missing := [name for name, path in programs.items() if path is None]:
        raise SystemExit(f"benchmarks.restricted: expected the programs unshare, mount and g++, found no {missing[0]}; install it")
    flags = re.compile(rf"\b({restriction.missing})\b ?")
    lines = Path("/proc/cpuinfo").read_text(encoding="ascii").splitlines(keepends=True)
    cpuinfo, compiler = folder / "cpuinfo", folder / "g++"
    cpuinfo.write_text("".join(flags.sub("", line) if line.startswith("flags") else line for line in lines), encoding="ascii")
    gcc = shlex.quote(str(programs["g++"]))
    compiler.write_text(COMPILER.format(gcc=gcc, march=restriction.march), encoding="utf-8")
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    run = f"mount --bind {shlex.quote(str(cpuinfo))} /proc/cpuinfo && exec {shlex.join(command)}"
    caches = {"XDG_CACHE_HOME": str(folder / "cache"), "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
    environment = restriction.variables | caches | {"CXX": str(compiler), RESTRICTION: f"python -m benchmarks.restricted {kind}"}
    return ["unshare", "--map-root-user", "--mount", "sh", "-c", run], dict(os.environ) | environment


def main(arguments: list[str] | None = None) -> None:
    """Run the command, restricted, and exit with its status."""
    form = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m benchmarks.restricted", description=__doc__, formatter_class=form)
    parser.add_argument("kind", choices=RESTRICTIONS, help="the kind of processor")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the command and its arguments")
    args = parser.parse_args(arguments)
    if not args.command:
        parser.error("expected a command, found none")
    with tempfile.TemporaryDirectory(prefix="restricted-") as folder:
        line, environment = restricted_command(args.kind, args.command, Path(folder))
        status = subprocess.call(line, env=environment)
    raise SystemExit(status)


if __name__ == "__main__":
    main()
