"""Trained runs for all tests of the server and its page."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving.runs import Runs, serve
from transom.serving.server import ExploreServer


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Train small runs when they are asked for."""
    return Runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def server(runs: dict[str, Path]) -> Iterator[ExploreServer]:
    """Serve the language model."""
    with serve(runs["language"]) as found:
        yield found
