"""``transom explore``: the address, the port, two models, and the end."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Call, Trained


def ask(url: str, name: str, **body: Any) -> dict[str, Any]:
    """Ask the server of a page."""
    request = urllib.request.Request(f"{url}api/{name}", json.dumps(body).encode(), method="POST")
    with urllib.request.urlopen(request, timeout=120) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


@pytest.mark.long
def test_a_page_is_served_until_ctrl_c(trained: Trained, tmp_path: Path) -> None:
    checkpoint = sorted((trained.folder / "checkpoints").iterdir())[0]
    words = [sys.executable, "-m", "transom", "explore", str(trained.folder), "--compare", str(checkpoint), "--no-browser", "--json"]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None and process.stderr is not None
        told = json.loads(process.stdout.readline())
        assert told["url"].startswith(f"http://127.0.0.1:{told['port']}/")
        first, second = ask(told["url"], "models")["models"]
        assert (first["name"], second["name"]) == (trained.folder.name, checkpoint.name)
        assert ask(told["url"], "pass", model=1, input={"text": "ab"})["tokens"]["encoder"]
        assert [each.name for each in tmp_path.glob("transom-explore-*")]
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
        assert "only this machine can open it" in process.stderr.read()
    assert not [*tmp_path.glob("transom-explore-*")], "uploads are removed"


def test_a_port_in_use_is_one_line(transom: Call, trained: Trained) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        outcome = transom("explore", trained.folder, "--port", str(port), "--no-browser")
    assert outcome.code == 2 and f"--port: expected a free port, found {port} in use" in outcome.err and outcome.out == ""


def test_a_folder_without_a_run_is_one_line(transom: Call, tmp_path: Path) -> None:
    outcome = transom("explore", tmp_path, "--no-browser")
    assert outcome.code == 2 and outcome.err.startswith("error: ")
