"""Trained runs, servers and a browser for all tests of the server and its page."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser import Browser, chromium
from tests.serving.runs import Runs, picture, serve, sound
from tests.serving.shown import Shown
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


@pytest.fixture(scope="module")
def shown(request: pytest.FixtureRequest, runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    """Serve one of the runs, and trace it independently."""
    run = runs[request.param]
    with serve(run) as server:
        folder = tmp_path_factory.mktemp("file")
        yield Shown(server, run, sound(folder / "sound.wav") if run.name == "sounds" else picture(folder / "picture.png"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Start a browser for the tests of a module."""
    program = chromium()
    if program is None:
        pytest.skip("needs Chromium")
    found = Browser(program)
    yield found
    found.close()


@pytest.fixture(autouse=True)
def _no_faults(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test of which a page had an error, a dialog or a request to another host."""
    yield
    if "browser" in request.fixturenames:
        assert request.getfixturevalue("browser").faults == []
