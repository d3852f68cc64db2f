"""Without what only POSIX systems have, every module imports, runs are loaded and answer, and training says in one line what is missing."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkpoints.checking import names

ROOT, GOLDEN = Path(__file__).parents[2], Path(__file__).parents[1] / "checkpoints" / "golden" / "format-1"

WITHOUT = """
import json, os, pkgutil, signal, sys
from importlib import import_module
import torch, pydantic, safetensors.torch, tokenizers, tomli_w, typer, rich, jaxtyping, sacrebleu, PIL.Image
for name in ("fcntl", "resource", "termios", "tty", "pwd", "grp", "pty", "posix", "readline"):
    sys.modules[name] = None  # importing it fails from now on
for name in ("O_NOFOLLOW", "O_DIRECTORY", "O_NONBLOCK", "O_CLOEXEC", "uname", "getuid", "geteuid", "sysconf", "sched_getaffinity", "pread"):
    delattr(os, name)
for name in ("SIGHUP", "SIGKILL", "SIGSTOP", "pthread_sigmask"):
    delattr(signal, name)
import transom
modules = [module.name for module in pkgutil.walk_packages(transom.__path__, "transom.") if not module.name.endswith("__main__")]
for name in modules:
    import_module(name)
from transom.cli.main import main
folder, text = sys.argv[1:]
print(len(modules), transom.load(folder, "fp32").translate([text]))
codes = [
    main(["translate", folder, text, "--precision", "fp32"]),
    main(["train", "copy", "--out", folder + "-more", "--set", "training.max_steps=1"]),
    main(["train", "copy", "--out", folder, "--resume"]),
    main(["evaluate", folder, "--source", folder + "/recipe.toml", "--target", folder + "/recipe.toml", "--precision", "fp32"]),
]
print(codes)
"""


@pytest.mark.long
def test_without_them_all_but_training_works(tmp_path: Path) -> None:
    run = shutil.copytree(GOLDEN, tmp_path / "run")
    text = str(json.loads(GOLDEN.with_suffix(".json").read_text())["source"])
    command = [sys.executable, "-c", WITHOUT, str(run), text]
    found = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    lines, errors = found.stdout.splitlines(), found.stderr.splitlines()
    assert lines[-1] == "[0, 2, 2, 2]", found
    assert int(lines[0].split()[0]) > 150 and len(errors) == 3, found
    for error in errors:
        assert error.startswith("error: ") and "found none; train and evaluate on Linux or macOS" in error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"] and names(run) == names(GOLDEN)  # refused before anything is made
