"""Check a release before it is published (``make release-check``).

Build the source distribution and the wheel, install the wheel into a new environment in another folder, and run there, without the
checkout: the demo, a plugin of docs/extending.md, and loading the run from Python. Takes about six minutes on two cores.
"""

import os
import re
import shlex
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

from tests.size import ROOT

NEEDED = (
    "transom/py.typed",
    "transom/recipes/phrasebook.toml",
    "transom/inspection/messages/de.json",
    "transom/inspection/pages/page.css",
    "transom/kernels/native/elementwise.cpp",
    "transom/kernels/native/step.cpp",
    "transom/serving/page/index.html",
    "transom/serving/page/app.js",
)
"""A sample of each kind of file that is no Python module."""
UNWANTED = re.compile(r"(^|/)(tests|benchmarks|log|runs|\.venv|__pycache__)/")

SHORT = (
    "model.d_model=16 model.n_heads=2 model.d_ff=16 model.n_encoder_layers=1 model.n_decoder_layers=1 training.max_steps=4"
    " data.generate.n_train=200 data.generate.n_valid=20 data.generate.n_test=20"
)


def run(*command: str | Path, folder: Path) -> str:
    """Run a command in a folder, without this checkout on its path; return its output."""
    print("$", shlex.join(map(str, command)), flush=True)
    environment = {name: x for name, x in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"error: exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def build(folder: Path) -> tuple[Path, Path]:
    """Build the source distribution, and the wheel from it; return both."""
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, folder=folder)
    (source,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return source, wheel


def check_contents(source: Path, wheel: Path) -> None:
    """Compare the files of both archives with what a release needs."""
    in_wheel = set(zipfile.ZipFile(wheel).namelist())
    with tarfile.open(source) as archive:
        in_source = {name.partition("/")[2] for name in archive.getnames()}
    for names, archive_name in ((in_wheel, wheel.name), (in_source, source.name)):
        if missing := set(NEEDED) - names:
            sys.exit(f"error: {archive_name} lacks {sorted(missing)}")
    if unwanted := sorted(filter(UNWANTED.search, in_wheel)):
        sys.exit(f"error: {wheel.name} contains {unwanted[:5]}")
    if not {"README.md", "LICENSE", "pyproject.toml"} <= in_source:
        sys.exit(f"error: {source.name} lacks README.md, LICENSE or pyproject.toml")


def main() -> int:
    """Build, install, run; exit at the first failure."""
    with tempfile.TemporaryDirectory() as scratch:
        dist, folder = Path(scratch) / "dist", Path(scratch) / "elsewhere"
        dist.mkdir()
        folder.mkdir()
        source, wheel = build(dist)
        check_contents(source, wheel)
        venv.create(folder / "venv", with_pip=True)
        bin_folder = folder / "venv" / "bin"
        run(bin_folder / "python", "-m", "pip", "install", "--quiet", *sys.argv[1:], "-c", ROOT / "constraints.txt", wheel, folder=folder)
        transom = bin_folder / "transom"
        if "hola mundo" not in run(transom, "demo", "--out", "runs/phrasebook", folder=folder):
            sys.exit("error: the demo does not translate 'hello world'")
        page = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
        plugin = re.search(r"^```python\n(# gated_square\.py:.*?)^```$", page, re.MULTILINE | re.DOTALL)
        assert plugin is not None
        (folder / "gated_square.py").write_text(plugin[1], encoding="utf-8")
        settings = [word for change in ("model.feed_forward=gated-square", *SHORT.split()) for word in ("--set", change)]
        run(transom, "train", "copy", "--plugin", "gated_square.py", *settings, "--out", "runs/plugin", folder=folder)
        run(transom, "translate", "runs/plugin", "a b c", "--plugin", "gated_square.py", folder=folder)
        script = "import transom; print(transom.__file__); print(transom.load('runs/phrasebook').translate(['hello world']))"
        where, answer = run(bin_folder / "python", "-c", script, folder=folder).splitlines()[:2]
        if not where.startswith(str(folder.resolve())) or "hola mundo" not in answer:
            sys.exit(f"error: {where} answered {answer}")
    print(f"release: {source.name} and {wheel.name} are complete; the installed wheel trains, translates and loads a plugin")
    return 0


if __name__ == "__main__":
    sys.exit(main())
