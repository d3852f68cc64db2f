"""Bad inputs, drawn from seeds: each ends as it must, in one line, soon, within little memory, and with nothing written.

``python -m tests.bad_input SEED`` judges one again and shows all of it; ``make soak`` judges many more.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bad_input.__main__ import Judge
from tests.bad_input.case import Accepted, Case, Draw, Place, Refused
from tests.bad_input.catalogue import AREAS, seeded
from tests.bad_input.harness import CPU_SECONDS, LINE, MEMORY, Ended, faults_of

CHUNK, FIRST_TIER = 10, 4
SEEDS = [
    seed for seed in range(len(AREAS) * max(map(len, AREAS.values()))) if seed // len(AREAS) < len([*AREAS.values()][seed % len(AREAS)])
]
"""The first seed of each kind of each area; later ones draw other values for it (``make soak``)."""


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    """Start a process that judges; of several test processes one trains the good runs for all."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "bad-input"
    shared.mkdir(exist_ok=True)
    judge = Judge(shared)
    yield judge
    judge.close()


def chunks(seeds: list[int]) -> list[object]:
    """Cut seeds into parts that are one test each."""
    parts = [seeds[start : start + CHUNK] for start in range(0, len(seeds), CHUNK)]
    return [pytest.param(part, id=f"{part[0]}-{part[-1]}") for part in parts]


@pytest.mark.parametrize("seeds", chunks(SEEDS[:FIRST_TIER]))
def test_bad_input_ends_well(seeds: list[int], judge: Judge) -> None:
    judged(judge, seeds)


@pytest.mark.long
@pytest.mark.parametrize("seeds", chunks(SEEDS[FIRST_TIER:]))
def test_more_bad_input_ends_well(seeds: list[int], judge: Judge) -> None:
    judged(judge, seeds)


def judged(judge: Judge, seeds: list[int]) -> None:
    """Fail with a line for each faulty seed."""
    if found := [line for _, line in judge.faults(seeds)]:
        pytest.fail("\n".join([*found, "one of them again: python -m tests.bad_input SEED"]), pytrace=False)


@pytest.mark.long
def test_areas_have_many_kinds_and_the_seeds_meet_all_of_them() -> None:
    assert min(map(len, AREAS.values())) >= 15
    met = [(found.area, found.kind) for found in map(seeded, SEEDS)]
    assert len(met) == len(set(met)) and set(met) == {(area, kind) for area, kinds in AREAS.items() for kind in kinds}


def test_a_seed_always_makes_the_same_case(tmp_path: Path) -> None:
    for seed in range(40):
        first, again = seeded(seed).case, seeded(seed).case
        assert (first.about, first.arguments, first.expects, first.may_write) == (
            again.about,
            again.arguments,
            again.expects,
            again.may_write,
        )
    texts = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        seeded(4).case.prepare(Place(tmp_path / name, tmp_path))
        texts.append([(path.name, path.read_bytes()) for path in (tmp_path / name).iterdir()])
    assert texts[0] == texts[1] and texts[0]


GOOD_END = Ended(2, "", "reading ...\nerror: bad.txt: expected text; mend it\n", 0.1, 0, False, False)
"""How a refused input should end."""


@pytest.mark.parametrize(
    ("ended", "fault"),
    [
        (GOOD_END, ""),
        (GOOD_END._replace(code=0), "expected exit code 2, found 0"),
        (GOOD_END._replace(code=-11), "ended by SIGSEGV"),
        (GOOD_END._replace(err="Traceback (most recent call last)\nerror: bad.txt\n"), "Traceback"),
        (GOOD_END._replace(err="error: bad.txt\nerror: bad.txt\n"), "one error line"),
        (GOOD_END._replace(err="error: bad.txt\nmore\n"), "one error line"),
        (GOOD_END._replace(err=f"error: bad.txt{'x' * LINE}\n"), f"an error line of {LINE + 14} characters"),
        (GOOD_END._replace(err="error: bad.txt \x1b[31m\n"), "control characters"),
        (GOOD_END._replace(err="error: something\n"), "found no 'bad.txt' in the error line"),
        (GOOD_END._replace(err="error: bad.txt: expected enough memory\n"), "ran out of memory"),
        (GOOD_END._replace(out="an answer\n"), "an answer beside the error"),
        (GOOD_END._replace(seconds=CPU_SECONDS + 1), "of processor time"),
        (GOOD_END._replace(peak=MEMORY + 2**20 + 7), "more memory than a good run"),
        (GOOD_END._replace(late=True), "had to be ended"),
        (GOOD_END._replace(left=True), "left a process behind"),
    ],
)
def test_every_fault_is_seen(ended: Ended, fault: str) -> None:
    found = faults_of(Case("", ["translate"], expects=Refused(("bad.txt",))), ended, good=7)
    assert fault in "; ".join(found) and bool(found) == bool(fault)


@pytest.mark.parametrize(
    ("ended", "fault"),
    [
        (Ended(0, "the answer\n", "a note\n", 0.1, 0, False, False), ""),
        (Ended(2, "", "error: a note\n", 0.1, 0, False, False), "expected exit code 0, found 2"),
        (Ended(0, "the answer\n", "error: a note\n", 0.1, 0, False, False), "printed an error line"),
        (Ended(0, "the answer\n", "", 0.1, 0, False, False), "found no 'a note'"),
    ],
)
def test_what_is_accepted_must_be_told(ended: Ended, fault: str) -> None:
    found = faults_of(Case("", ["translate"], expects=Accepted(("a note",))), ended, good=0)
    assert fault in "; ".join(found) and bool(found) == bool(fault)


def test_draws_depend_on_nothing_but_their_seed() -> None:
    assert Draw("a, b, 3").odd_text() == Draw("a, b, 3").odd_text()
