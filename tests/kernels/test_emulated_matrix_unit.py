"""With the instructions of the matrix unit emulated, the native code passes its tests on processors without one, too."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernels.sanitize import EMULATED
from tests.kernels.test_native_decoder import needs_library
from transom.kernels.native_build import find_compiler

ROOT = Path(__file__).parents[2]
TESTS = {
    "step": [
        "kernels/test_native_decoder.py",
        "kernels/test_native_decoder_bounds.py",
        "kernels/test_native_greedy_search.py",
        "decoding/test_encoder_backend.py",
    ],
    "elementwise": ["kernels/test_matrix_unit.py", "kernels/test_native_attention.py"],
}
"""Tests of each library."""


@pytest.fixture(scope="module")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@needs_library
@pytest.mark.kernels
@pytest.mark.long
@pytest.mark.parametrize(("library", "name"), [(library, name) for library, names in TESTS.items() for name in names])
def test_its_tests_pass(library: str, name: str, cache_folder: Path) -> None:
    command = shlex.join([*find_compiler().command, *EMULATED])
    environment = {**os.environ, "CXX": command, "XDG_CACHE_HOME": str(cache_folder), "OMP_NUM_THREADS": "1"}
    options = [
        "-o",
        "addopts=--import-mode=importlib",
        "-p",
        "no:cacheprovider",
        "-m",
        "not long and not soak and not compile",
        "-k",
        "not other_processors",
    ]
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *options, f"tests/{name}"], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stdout[-3000:]
    assert " passed" in found.stdout and "failed" not in found.stdout
    assert b"emulated" in next((cache_folder / "transom").glob(f"{library}-*.so")).read_bytes()
