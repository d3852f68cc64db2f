"""Tables and texts fit the terminal, no number is broken, and nothing is lost."""

import re

import pytest

from tests.cli.conftest import Call, Trained
from transom.cli import terminal_width
from transom.cli.output import align_columns
from transom.cli.terminal_width import fit_columns, fit_text, split_columns

TABLE = [
    ("name", "shape", "mean", "std"),
    ("decoder.blocks.10.cross_residual.norm.normalized", "(batch=1, n_heads=12, query=17, key=17)", "0.0007182", "-1.004"),
    ("logits", "(batch=1, vocab=50257)", "12.25", "0.5"),
]


@pytest.fixture(params=[40, 80, 100, 200])
def width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Set the width of the terminal."""
    monkeypatch.setattr(terminal_width, "terminal_width", lambda: request.param)
    return int(request.param)


def test_a_table_that_is_too_wide_has_its_names_above_and_its_texts_wrapped(width: int) -> None:
    lines = fit_columns(TABLE, n_left=2)
    if width == 200:
        assert lines == align_columns(TABLE, n_left=2)
        return
    longest = len(TABLE[1][0])
    assert max(map(len, lines)) <= max(width, longest)
    assert sorted(" ".join(lines).split()) == sorted(" ".join(map(" ".join, TABLE)).split())
    assert lines[0] == "name" and TABLE[1][0] in lines
    numbers = {match.end() for line in lines if (match := re.search(r"(?:std|-1\.004|0\.5)$", line))}
    assert len(numbers) == 1, "numbers are aligned"


def test_a_table_of_numbers_continues_below_itself(width: int) -> None:
    rows = [["block", *(f"head {i}" for i in range(16))], *(["b0", *(f"{i}.5" for i in range(16))],)]
    lines = list(split_columns(rows, indent=4))
    assert max(map(len, lines)) <= width and all(line.startswith("    ") for line in lines if line)
    parts = "\n".join(lines).split("\n\n")
    assert [number for part in parts for number in part.splitlines()[1].split()[1:]] == rows[1][1:]
    assert all(part.split()[0] == "block" for part in parts) and (len(parts) == 1) == (width == 200)


def test_a_line_is_wrapped_at_spaces(width: int) -> None:
    line = f"  {'a-word 0.125, ' * 9}{'long' * 30}"
    assert fit_text(line).split() == line.split()
    assert all(len(part) <= width or part.split() == ["long" * 30] for part in fit_text(line).splitlines())


def test_the_tables_of_commands_fit_and_a_pipe_gets_whole_lines(transom: Call, trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = [
        ("names",),
        ("names", trained.folder),
        ("trace", trained.folder, "ab ba"),
        ("ablate", trained.folder, "ab ba", "--stack", "decoder", "--over", "keys"),
        ("worked-examples",),
        ("worked-examples", "--errata"),
    ]
    whole = [transom(*command).out for command in commands]
    for columns in (80, 100):
        monkeypatch.setattr(terminal_width, "terminal_width", lambda columns=columns: columns)
        for command, wide in zip(commands, whole, strict=True):
            shown = transom(*command).out
            assert max(map(len, shown.splitlines())) <= columns, command
            assert set(wide.split()) == set(shown.split()), command
