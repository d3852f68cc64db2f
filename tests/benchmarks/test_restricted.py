"""A restricted processor: what transom, PyTorch and the compiler find there."""

import shutil
import subprocess
import sys

import pytest

from benchmarks.measure import RESTRICTION
from benchmarks.restricted import RESTRICTIONS, main


def is_possible() -> bool:
    if not all(map(shutil.which, ("unshare", "mount", "g++"))):
        return False
    return subprocess.run(["unshare", "--map-root-user", "--mount", "true"], capture_output=True, check=False).returncode == 0


pytestmark = pytest.mark.skipif(not is_possible(), reason="needs unshare, mount and g++, and the permission to create a mount namespace")

SHOWN = "import os, sys; from transom.files.cpu_info import cpu_flags; print(*sorted(cpu_flags())); print(os.environ[sys.argv[1]])"
MACROS = '"$CXX" -march=native -mamx-tile -mavx512bf16 -dM -E -x c++ - < /dev/null'


def output_of(kind: str, command: list[str], capfd: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        main([kind, *command])
    assert ended.value.code == 0
    return capfd.readouterr().out


@pytest.mark.parametrize(("kind", "lacks"), [("avx2", "avx512"), ("avx512", "avx512_bf16")])
def test_flags_compiler_and_records_are_those_of_the_kind(kind: str, lacks: str, capfd: pytest.CaptureFixture[str]) -> None:
    flags, note = output_of(kind, [sys.executable, "-c", SHOWN, RESTRICTION], capfd).splitlines()
    assert flags and not any(flag.startswith((lacks, "amx")) for flag in flags.split())
    assert note == f"python -m benchmarks.restricted {kind}"
    macros = output_of(kind, ["sh", "-c", MACROS], capfd)
    assert "__AVX2__" in macros and "__AMX_TILE__" not in macros and "__AVX512BF16__" not in macros
    assert ("__AVX512VNNI__" in macros) == (kind == "avx512")


def test_the_status_is_that_of_the_command() -> None:
    with pytest.raises(SystemExit, match="7"):
        main(["avx2", "sh", "-c", "exit 7"])


@pytest.mark.long
@pytest.mark.parametrize("kind", RESTRICTIONS)
def test_pytorch_obeys(kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    code = "import torch; print(torch.backends.cpu.get_cpu_capability())"
    assert output_of(kind, [sys.executable, "-c", code], capfd).strip() == {"avx2": "AVX2", "avx512": "AVX512"}[kind]
