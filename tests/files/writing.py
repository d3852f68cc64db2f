"""Fixtures for tests of what is written to disk."""

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

Python = Callable[[str], str]


@pytest.fixture
def python(tmp_path: Path) -> Python:
    """Run a script in a process of its own, in ``tmp_path``, with ``survive`` at hand; return what it printed."""
    here = Path(__file__)

    def run(script: str) -> str:
        path = os.pathsep.join([str(here.parent), str(here.parents[2])])
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def limited_files() -> Callable[[int], AbstractContextManager[None]]:
    """Let no file grow beyond a number of bytes, for a moment: the kernel then refuses in the middle of a write, as a full disk does."""

    @contextmanager
    def limit(n_bytes: int) -> Iterator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limit
