"""A command line to call, aligned files to read, and a tiny trained run."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from transom.cli.main import main

TINY = (
    "tokenizer.kind=char",
    "tokenizer.joint=true",
    "model.d_model=16",
    "model.d_ff=16",
    "model.n_heads=2",
    "model.n_encoder_layers=1",
    "model.n_decoder_layers=1",
    "training.batch_tokens=256",
    "training.validate_every=5",
    "training.validate_bleu=4",
    "training.checkpoint_every=5",
    "training.log_every=1",
    "training.precision=fp32",
    "decoding.max_length=12",
    "decoding.beam_size=2",
)
"""A model that trains in a second or two."""


class Outcome(NamedTuple):
    """What a command line did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its answer; there is one line and nothing else."""
        assert self.out.count("\n") == 1
        return json.loads(self.out)

    @property
    def error(self) -> str:
        """Its error: exactly one line, exit code 2, no answer."""
        assert (self.code, self.out) == (2, ""), self
        *_, line = self.err.strip().split("\n")
        assert line.startswith("error: ")
        assert self.err.count("error:") == 1 and "Traceback" not in self.err
        return line


Call = Callable[..., Outcome]


@pytest.fixture
def transom(capfd: pytest.CaptureFixture[str]) -> Call:
    """Give a function that runs a command line in this process."""

    def call(*arguments: str | Path) -> Outcome:
        capfd.readouterr()
        code = main([str(argument) for argument in arguments])
        return Outcome(code, *capfd.readouterr())

    return call


def sets(*overrides: str) -> list[str]:
    """Spell overrides as flags."""
    return [part for override in overrides for part in ("--set", override)]


def write_pairs(folder: Path, n: int, seed: int = 0) -> tuple[Path, Path]:
    """Write aligned files of short sentences and the same reversed."""
    draw = random.Random(seed)
    lines = [" ".join(draw.choices(["ab", "ba", "aa", "cab"], k=draw.randint(1, 4))) for _ in range(n)]
    source, target = folder / f"{seed}.source", folder / f"{seed}.target"
    source.write_text("".join(f"{line}\n" for line in lines))
    target.write_text("".join(f"{line[::-1]}\n" for line in lines))
    return source, target


class Trained(NamedTuple):
    """A tiny run and what it was made from."""

    folder: Path
    source: Path
    target: Path
    command: list[str]


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Train a tiny model once."""
    folder = tmp_path_factory.mktemp("trained")
    source, target = write_pairs(folder, 120)
    command = [
        "train",
        "translation",
        "--source",
        str(source),
        "--target",
        str(target),
        *sets(*TINY, "training.max_steps=10", "data.min_valid=0"),
    ]
    assert main([*command, "--out", str(folder / "run"), "--json"]) == 0
    return Trained(folder / "run", source, target, command)
