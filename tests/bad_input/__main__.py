"""Judge bad inputs by their seeds.

- ``python -m tests.bad_input 17 203`` judges these two, and shows what they printed;
- ``python -m tests.bad_input --count 20000`` judges the seeds 0 to 19,999, and names the faulty ones (``make soak``);
- ``python -m tests.bad_input --kinds`` lists areas and kinds;
- ``python -m tests.bad_input --serve FOLDER`` judges the seeds on standard input, a line of JSON each, with good runs kept in FOLDER.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from tests.bad_input.catalogue import AREAS, seeded
from tests.bad_input.harness import Harness

ROOT = Path(__file__).parent.parent.parent


class Judge:
    """A process that judges seeds: one that runs nothing else, so that it may fork."""

    def __init__(self, folder: Path) -> None:
        """Start it; the first one prepares the good runs in ``folder``, the others wait for it."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-W", "error", "-m", "tests.bad_input", "--serve", str(folder)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8", env=environment, cwd=ROOT
        )

    def faults(self, seeds: Iterable[int]) -> Iterator[tuple[int, str]]:
        """Give each faulty seed, and in a line what it is and what is wrong with it."""
        assert self.process.stdin is not None and self.process.stdout is not None
        for seed in seeds:
            self.process.stdin.write(f"{seed}\n")
            self.process.stdin.flush()
            if not (line := self.process.stdout.readline()):
                raise RuntimeError(f"the judge ended at seed {seed}, with exit code {self.process.wait()}")
            if faults := json.loads(line):
                yield seed, f"{told(seed)}: {'; '.join(faults)}"

    def close(self) -> None:
        """End it."""
        self.process.communicate()


def told(seed: int) -> str:
    """Say in a line what a seed's case is."""
    area, kind, case = seeded(seed)
    return f"seed {seed} ({area}, {kind}): {ascii(case.about)[1:-1]:.200}"


def serve(folder: Path) -> None:
    """Judge seeds from standard input."""
    harness = Harness(folder)
    for line in sys.stdin:
        print(json.dumps(harness.judge(seeded(int(line)).case, line.strip())), flush=True)


def rerun(folder: Path, seeds: Sequence[int]) -> bool:
    """Judge some seeds and show all of each; return whether all were well."""
    harness, well = Harness(folder), True
    for seed in seeds:
        case = seeded(seed).case
        faults = harness.judge(case, str(seed))
        well = well and not faults
        print(told(seed))
        print(f"  arguments: {case.arguments!a:.500}\n  expects: {case.expects}\n  folder: {harness.cases / str(seed)}")
        if faults:
            for name in ("out", "err"):
                print(f"  {name}: {ascii((harness.cases / str(seed) / 'output' / name).read_text(errors='replace'))[:3000]}")
        print("  " + ("; ".join(faults) or "well"), flush=True)
    return well


def soak(folder: Path, count: int, jobs: int) -> bool:
    """Judge many seeds by several processes, naming the faulty ones as they are found; return whether all were well."""
    start = time.monotonic()
    with ExitStack() as stack, ThreadPoolExecutor(jobs) as pool:
        judges = [Judge(folder) for _ in range(jobs)]
        for judge in judges:
            stack.callback(judge.close)

        def judged(number: int) -> int:
            n_faulty = 0
            for _, line in judges[number].faults(range(number, count, jobs)):
                print(line, flush=True)
                n_faulty += 1
            return n_faulty

        n_faulty = sum(pool.map(judged, range(jobs)))
    print(f"{count:,} bad inputs, {n_faulty:,} faulty, {time.monotonic() - start:.0f} s; one again: python -m tests.bad_input SEED")
    return n_faulty == 0


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bad_input", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("seeds", nargs="*", type=int)
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--kinds", action="store_true")
    parser.add_argument("--serve", type=Path)
    parser.add_argument("--folder", type=Path, help="where to keep the good runs and the faulty cases")
    given = parser.parse_args()
    if given.serve is not None:
        serve(given.serve)
        return 0
    if given.kinds:
        for area, kinds in AREAS.items():
            print(f"{area}: {len(kinds)}: {', '.join(kinds)}")
        return 0
    folder = given.folder or Path(tempfile.mkdtemp(prefix="bad-input-"))
    well = rerun(folder, given.seeds) if given.seeds else soak(folder, given.count, given.jobs)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
