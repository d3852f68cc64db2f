"""Every packaged recipe does what its first lines say: its own commands run, word for word, on small files of the names that they name."""

import csv
import json
import math
import random
import shlex
import shutil
import subprocess
import tomllib
import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from tests.cli.conftest import Call, sets
from tests.tiers import tiers
from tests.waves import wav
from transom.config.packaged import packaged_recipes

SHORT = (
    "training.max_steps=2",
    "training.validate_every=2",
    "training.checkpoint_every=2",
    "training.log_every=1",
    "training.precision=fp32",
)
"""Two steps of the recipe's own model."""

FOR_TASK = {
    "translation": ("training.batch_tokens=256", "training.validate_bleu=2", "decoding.max_length=4"),
    "language": ("training.batch_tokens=512", "training.validate_samples=0", "decoding.max_new_tokens=4"),
    "instruction": ("training.batch_tokens=512", "decoding.max_new_tokens=4"),
    "image-classification": ("training.batch_size=8",),
    "audio-classification": ("training.batch_size=8",),
}
"""Little to read and to write."""

OF_ITS_OWN = {"python-stdlib": ("data.generate.n_files=40",)}
"""What a recipe needs besides to be short."""

BEFORE = {"instructions": "text-bpe"}
"""The recipe whose run a recipe's commands begin from."""


def commands_of(name: str) -> Iterator[list[str]]:
    """Read the command lines in the first comment of a recipe."""
    for line in packaged_recipes()[name].splitlines():
        if not line.startswith("#"):
            return
        if line.startswith("#     "):
            yield shlex.split(line.removeprefix("#     "), comments=True)


def lines(n: int, seed: int) -> list[str]:
    """Draw sentences of a small language."""
    draw = random.Random(seed)
    words = ["".join(draw.choices("abcdefghijklmnoprstuvw", k=draw.randint(2, 7))) for _ in range(400)]
    return [" ".join(draw.choices(words, k=draw.randint(3, 9))) + "." for _ in range(n)]


def image(seed: int, size: int = 32) -> bytes:
    """Draw a picture in a jpeg file's bytes."""
    file = BytesIO()
    Image.effect_noise((size, size), 20 + seed).convert("RGB").save(file, "JPEG")
    return file.getvalue()


def write(root: Path) -> None:
    """Write all files that the recipes' commands name."""

    def text(name: str, rows: list[str]) -> None:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(rows) + "\n", encoding="utf-8")

    for side, seed in (("en", 1), ("de", 2), ("fr", 3)):
        for split, n in (("train", 600), ("val", 20), ("test_2016_flickr", 20)):
            text(f"data/multi30k/{split}.{side}", lines(n, seed))
    text("data/tinyshakespeare/input.txt", [f"ROMEO: {line}" for line in lines(2000, 4)])
    for split in ("train", "dev"):
        text(f"data/sst2/{split}.tsv", [f"{line}\t{i % 2}" for i, line in enumerate(lines(300, 5))])
    for name, seed in (("train.en", 1), ("train.de", 2), ("questions.txt", 6), ("answers.txt", 7)):
        text(name, lines(600, seed))
    for name in ("val.en", "val.de"):
        text(name, lines(20, 8))
    for i, part in enumerate(lines(600, 9)):
        text(f"notes/{i}.txt", [part])
        text(f"src/{i}.py", [f"def name_{i}(): '''{part}'''"])
    for name in ("train.jsonl", "valid.jsonl"):
        text(name, [json.dumps({"text": line}) for line in lines(300, 10)])
    text("mine.jsonl", [json.dumps({"prompt": line, "answer": line[::-1]}) for line in lines(300, 11)])
    text("test.jsonl", [json.dumps({"prompt": line, "answer": line[::-1]}) for line in lines(20, 16)])
    text("mine.tsv", [f"{line}\t{line[::-1]}" for line in lines(300, 12)])
    text("reviews.tsv", [f"{line}\t{'good' if i % 2 else 'bad'}" for i, line in enumerate(lines(300, 13))])
    rows = [f"{line}\t{line[::-1]}\t{('yes', 'no')[i % 2]}" for i, line in enumerate(lines(300, 17))]
    text("nli.tsv", ["text\thypothesis\tlabel", *rows])
    text("topics.tsv", [f"{line}\t{('space', 'sport', 'space|sport')[i % 3]}" for i, line in enumerate(lines(300, 14))])
    for name in ("train.csv", "valid.csv"):
        with (root / name).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([["text", "label"], *([line, str(i % 2)] for i, line in enumerate(lines(300, 14)))])
    for name in ("train.conll", "valid.conll", "test.conll"):
        text(
            name,
            [f"{line.replace(' ', chr(9) + 'B-NAME' + chr(10), 1).replace(' ', chr(9) + 'O' + chr(10))}\tO\n" for line in lines(60, 15)],
        )
    (root / "data/cifar10").mkdir()
    with zipfile.ZipFile(root / "data/cifar10/train.zip", "w") as archive:
        for i in range(40):
            archive.writestr(f"{'cat' if i % 2 else 'dog'}/{i}.jpg", image(i))
    for i in range(40):
        photo = root / "photos" / ("cat" if i % 2 else "dog") / f"{i}.jpg"
        photo.parent.mkdir(parents=True, exist_ok=True)
        photo.write_bytes(image(i, 80))
    (root / "cat.jpg").write_bytes(image(1, 90))
    for i in range(40):
        sound = root / "sounds" / ("bark" if i % 2 else "purr") / f"{i}.wav"
        sound.parent.mkdir(parents=True, exist_ok=True)
        sound.write_bytes(wav([math.sin(i * place / (3 if i % 2 else 9)) for place in range(400)]))
    for name in ("bark.wav", "sound.wav"):
        (root / name).write_bytes(wav([0.5, -0.5] * 300))
    Image.effect_noise((8, 8), 30).save(root / "digit.png")


SLOW = ("phrasebook-both", "phrasebook-lstm", "synthetic-sounds", "exercises")
"""Recipes whose commands `make soak` runs."""


@pytest.mark.parametrize("name", tiers(packaged_recipes(), long=[name for name in packaged_recipes() if name not in SLOW]))
def test_its_own_commands_run(name: str, transom: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path)
    monkeypatch.chdir(tmp_path)
    before = list(commands_of(BEFORE[name]))[:1] if name in BEFORE else []
    commands = []
    for program, command, *arguments in [*before, *commands_of(name)]:
        if program != "transom":
            if program == "cut":
                subprocess.run(shlex.join([program, command, *arguments]).replace("'>'", ">"), shell=True, check=True)
            continue  # an example of texts, not a command
        extra: list[str] = []
        if command == "train":
            task = tomllib.loads(packaged_recipes()[arguments[0]])["task"]
            extra = [*sets(*SHORT, *FOR_TASK.get(task, ()), *OF_ITS_OWN.get(name, ()))]
            shutil.rmtree(arguments[arguments.index("--out") + 1], ignore_errors=True)  # of another way to train
        outcome = transom(command, *arguments, *extra)
        assert outcome.code == 0, outcome.err
        commands.append(command)
    assert "train" in commands and set(commands) - {"train"}, "a recipe shows how to train and what to ask its model"
