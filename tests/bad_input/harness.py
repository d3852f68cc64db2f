"""Run command lines in forked processes, and judge how bad input ended.

The process that forks has imported all of transom and started no thread. Each case runs ``transom.cli.main.main`` in a fork of it, so a
crash, an endless wait or altered state of one case cannot touch the next, and the kernel counts its processor time and peak memory.
"""

import fcntl
import importlib
import json
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from tests.bad_input.case import Accepted, Case, Place, Refused, copied
from tests.bad_input.good_runs import prepare
from transom.checkpoints.run_files import ACCESS_LOG

CPU_SECONDS = 5.0
"""Most processor time of a case."""

MEMORY = 256 * 2**20
"""Most bytes of memory that a case may take above good commands of the same command."""

LINE = 500
"""Most characters of an error line."""

_STOPPED_SECONDS = 60
"""A case that takes longer is ended."""

_STOPPED_BYTES = 4 * 2**30
"""Further address space that a case is given, so that no case can stop the machine."""

_NOTING = ("evaluate", "score", "compare", "classify")
"""Commands that note in a run's ledger what it is judged by, before they read it."""

_BROKEN = 70
"""Exit code of a fork whose ``main`` raised something."""


class Ended(NamedTuple):
    """How a command line ended.

    Attributes:
        code: its exit code; of a signal, the negative number.
        out: standard output.
        err: standard error.
        seconds: processor time, child processes included.
        peak: most memory, in bytes, above what the forking process had.
        late: whether it had to be ended.
        left: whether it left a process behind.
    """

    code: int
    out: str
    err: str
    seconds: float
    peak: int
    late: bool
    left: bool


class Harness:
    """Judges cases; keeps good data and runs under ``good`` of its folder, and the cases under ``cases``."""

    def __init__(self, folder: Path) -> None:
        """Prepare the good runs unless another process has, and take a copy of them."""
        self.good, self.cases, self.cache = folder / "good", folder / "cases", folder / "cache"
        for path in (self.good, self.cases):
            path.mkdir(parents=True, exist_ok=True)
        _import_everything()
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            peaks = folder / "peaks.json"
            if not peaks.exists():
                peaks.write_text(json.dumps(prepare(self.good, self._good_peak)))
            self.peaks: dict[str, int] = json.loads(peaks.read_text())
        self.good = copied(self.good, folder / f"good-{os.getpid()}")
        self._shared = [self.good, folder / "good"]
        self._before = [_snapshot(each) for each in self._shared]

    def judge(self, case: Case, name: str) -> list[str]:
        """Run a case and return its faults; its folder is removed where there are none.

        Args:
            case: what to run.
            name: of its folder.
        """
        root = self.cases / name
        if root.exists():
            shutil.rmtree(root)
        for part in ("here", "home", "tmp", "output"):
            (root / part).mkdir(parents=True)
        case.prepare(Place(root / "here", self.good))
        before = _snapshot(root)
        arguments = [each.replace("GOOD", str(self.good), 1) if each.startswith("GOOD/") else each for each in case.arguments]
        ended = self._run(arguments, root / "here", root, case.standard_input)
        faults = faults_of(case, ended, self.peaks.get(arguments[0] if arguments else "", max(self.peaks.values())))
        notes = bool(arguments) and arguments[0] in _NOTING
        faults += [
            f"wrote {each}" for each in _changes(before, _snapshot(root), [*(f"here/{each}" for each in case.may_write), "output"], notes)
        ]
        after = [_snapshot(each) for each in self._shared]
        for old, new in zip(self._before, after, strict=True):
            faults += [f"wrote {each} of the good runs" for each in _changes(old, new, (), notes)]
        self._before = after
        if not faults:
            shutil.rmtree(root)
        return faults

    def _good_peak(self, arguments: list[str]) -> int:
        root = self.cases / "good"
        for part in ("home", "tmp", "output"):
            (root / part).mkdir(parents=True, exist_ok=True)
        ended = self._run(arguments, self.good, root, b"")
        if ended.code != 0:
            raise RuntimeError(f"a good command failed: {arguments}: {ended}")
        return ended.peak

    def _run(self, arguments: Sequence[str], here: Path, root: Path, standard_input: bytes) -> Ended:
        output = root / "output"
        (output / "in").write_bytes(standard_input)
        streams = [(output / "in").open("rb"), (output / "out").open("wb"), (output / "err").open("wb")]
        sys.stdout.flush()
        sys.stderr.flush()
        base = _resident_bytes()
        if (process := os.fork()) == 0:
            _be_the_command(arguments, here, root, self.cache, streams)
        for stream in streams:
            stream.close()
        watched = os.pidfd_open(process)
        late = not select.select([watched], [], [], _STOPPED_SECONDS)[0]
        os.close(watched)
        if late:
            os.kill(process, signal.SIGKILL)
        _, status, used = os.wait4(process, 0)
        out, err = ((output / name).read_bytes().decode(errors="replace") for name in ("out", "err"))
        seconds, peak = used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 - base
        return Ended(os.waitstatus_to_exitcode(status), out, err, seconds, peak, late, _left(process))


def _be_the_command(arguments: Sequence[str], here: Path, root: Path, cache: Path, streams: Sequence[IO[bytes]]) -> None:
    """Run the command line in this forked process, and end it."""
    code = _BROKEN
    try:
        os.setsid()
        for number, stream in enumerate(streams):
            os.dup2(stream.fileno(), number)
        sys.stdin, sys.stdout, sys.stderr = (
            open(number, mode, encoding="utf-8", closefd=False)  # noqa: SIM115  # they live as long as the process
            for number, mode in enumerate(("r", "w", "w"))
        )
        resource.setrlimit(resource.RLIMIT_AS, (_address_space() + _STOPPED_BYTES,) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.environ.update(HOME=str(root / "home"), TMPDIR=str(root / "tmp"), XDG_CACHE_HOME=str(cache))
        tempfile.tempdir = None
        os.chdir(here)
        from transom.cli.main import main

        code = main(arguments)
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # noqa: BLE001  # whatever it is, the fork must not go on as its parent
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def faults_of(case: Case, ended: Ended, good: int) -> list[str]:
    """Compare an ending with what a case expects.

    Args:
        case: what was run.
        ended: how it ended.
        good: peak memory of good commands like it.
    """
    faults = _faults_of_ending(case, ended)
    if ended.late:
        faults.append(f"had to be ended after {_STOPPED_SECONDS} s")
    if ended.seconds > CPU_SECONDS:
        faults.append(f"took {ended.seconds:.1f} s of processor time")
    if (more := ended.peak - good) > MEMORY:
        faults.append(f"took {more / 2**20:,.0f} MiB more memory than a good run")
    if "expected enough memory" in ended.err:
        faults.append("ran out of memory")
    if ended.left:
        faults.append("left a process behind")
    return faults


def _faults_of_ending(case: Case, ended: Ended) -> list[str]:
    """Compare exit code and lines with what a case expects."""
    faults = []
    lines = ended.err.split("\n")
    errors = [line for line in lines if line.startswith("error:")]
    wanted = 2 if isinstance(case.expects, Refused) else 0
    if ended.code < 0:
        faults.append(f"ended by {signal.Signals(-ended.code).name}")
    elif ended.code != wanted:
        faults.append(f"expected exit code {wanted}, found {ended.code}")
    faults += [f"printed {word!r}" for word in ("Traceback (most", "internal error:", "Warning:") if word in ended.err]
    if odd := {c for c in ended.err if c != "\n" and unicodedata.category(c) in ("Cc", "Zl", "Zp")}:
        faults.append(f"printed control characters on standard error: {''.join(sorted(odd))!a}")
    if isinstance(case.expects, Accepted):
        faults += [f"found no {note!r} in what was printed" for note in case.expects.notes if note not in ended.out + ended.err]
        return faults + ["printed an error line"] * bool(errors)
    if len(errors) != 1 or lines[-2:] != [errors[0], ""]:
        faults.append(f"expected one error line, the last one, found {len(errors)}")
    for line in errors:
        if len(line) > LINE:
            faults.append(f"printed an error line of {len(line):,} characters")
        faults += [f"found no {name!r} in the error line" for name in case.expects.names if name not in line]
    if ended.out and ended.code == wanted:
        faults.append("printed an answer beside the error")
    return faults


Snapshot = dict[str, tuple[object, ...]]


def _snapshot(root: Path) -> Snapshot:
    """Look at every name below a folder: kind, size, time of the last change, and where a link leads."""
    found: Snapshot = {}
    for folder, folders, files in os.walk(root):
        for name in [*folders, *files]:
            path = Path(folder) / name
            state = path.lstat()
            plain = path.is_file() and not path.is_symlink()
            link = str(path.readlink()) if path.is_symlink() else None
            found[str(path.relative_to(root))] = (state.st_mode, link, *((state.st_size, state.st_mtime_ns, state.st_ino) if plain else ()))
    return found


def _changes(before: Snapshot, after: Snapshot, allowed: Iterable[str], noting: bool) -> list[str]:
    """List the names that came, went or changed, without those that may, and without the runs' ledgers if the command writes these."""
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    changed = [name for name in changed if not (noting and Path(name).name == ACCESS_LOG)]
    free = tuple(allowed)
    return [ascii(name) for name in changed if not any(name == each or name.startswith(f"{each}/") for each in free)]


def _left(process: int) -> bool:
    """End what is left of a command's session; tell whether there was anything."""
    try:
        os.killpg(process, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _import_everything() -> None:
    """Import what the commands import when they run, and measure the machine, which is done once a process."""
    import torch

    torch.set_num_threads(1)
    package = Path(importlib.import_module("transom").__file__ or "").parent
    for path in sorted(package.rglob("*.py")):
        name = ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")
        if not name.endswith("__main__"):
            importlib.import_module(name)
    # Importing torch._inductor makes PyTorch's own empty folder among the temporary files: here, before any case.
    for name in ("torch._inductor", "PIL.Image", "PIL.ImageOps", "sacrebleu", "sklearn.datasets", "tokenizers", "rich.progress"):
        importlib.import_module(name)
    from PIL import Image

    from transom.planning.hardware import measure_peak

    Image.init()
    measure_peak(torch.device("cpu"))
