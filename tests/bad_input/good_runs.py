"""Small good data and a trained run of each task: what cases copy and damage."""

import json
import random
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

TINY = (
    "model.d_model=16",
    "model.n_heads=2",
    "model.d_ff=16",
    "training.max_steps=4",
    "training.validate_every=2",
    "training.checkpoint_every=2",
    "training.log_every=1",
    "training.precision=fp32",
)
ON_TEXT = (*TINY, "model.max_seq_len=32", "training.batch_tokens=128")
ONE_BLOCK_A_SIDE = ("model.n_encoder_layers=1", "model.n_decoder_layers=1")
SEARCH = ("decoding.beam_size=2", "decoding.max_length=12")
LINES = ("data.train.document=line",)
SHORT = "decoding.max_new_tokens=8"
EMA = "training.average={ kind = 'ema', decay = 0.5 }"

RUNS: dict[str, tuple[str, list[str], tuple[str, ...]]] = {
    "translation": (
        "translation",
        ["--source", "pairs.source", "--target", "pairs.target"],
        (*ON_TEXT, *ONE_BLOCK_A_SIDE, "tokenizer.kind=char", "training.validate_bleu=2", "training.average.n_checkpoints=2", *SEARCH),
    ),
    "language": (
        "text-bpe",
        ["--text", "text.txt"],
        (*ON_TEXT, "model.n_layers=2", "model.position=learned", "tokenizer.vocab_size=300", "training.optimizer=muon", EMA, *LINES, SHORT),
    ),
    "masked": (
        "text-masked",
        ["--text", "text.txt"],
        (*ON_TEXT, "model.n_layers=1", "tokenizer.kind=whitespace", *LINES),
    ),
    "classification": ("text-classes", ["--labeled-data", "labelled.tsv"], (*ON_TEXT, "model.n_layers=1", "tokenizer.kind=char", EMA)),
    "embedding": (
        "text-pairs",
        ["--source", "pairs.source", "--target", "pairs.target"],
        (*ON_TEXT, "model.n_layers=1", "tokenizer.vocab_size=280", "training.optimizer=sgd"),
    ),
    "instruction": (
        "instructions",
        ["--instructions", "instructions.jsonl"],
        (*ON_TEXT, "model.n_layers=1", "tokenizer.kind=char", SHORT),
    ),
    "images": (
        "images",
        ["--images", "images"],
        (*TINY, "model.image_size=8", "model.n_layers=1", "model.stem.channels=[8]", "training.batch_size=8"),
    ),
}
"""Recipe, own files and fields of each run."""

TWIN = "twin"
"""A run like the translator, from another seed."""

GOOD: tuple[tuple[str, ...], ...] = (
    ("translate", "translation", "ab ba"),
    ("evaluate", "translation", "--source", "data/few.source", "--target", "data/few.target"),
    ("compare", "translation", "translation", "--source", "data/few.source", "--target", "data/few.target", "--resamples", "10"),
    ("score", "translation", "--source", "data/few.source", "--target", "data/few.target"),
    ("score", "language", "--text", "data/text.txt"),
    ("generate", "language", "ab"),
    ("generate", "instruction", "ab"),
    ("fill", "masked", "ab [MASK]"),
    ("classify", "classification", "ab ba"),
    ("classify", "images", "data/images/dark/0.png"),
    ("classify", "images", "--labeled-data", "data/images"),
    ("embed", "embedding", "ab ba", "cab"),
    ("compare-attention", "language", "--text", "ab ba", "--repeats", "1"),
    ("recipes", "show", "copy"),
    ("tokenizer", "show", "language", "ab"),
    ("tokenizer", "train", "text-bpe", "--text", "data/text.txt", "--set", "tokenizer.vocab_size=300", "--out", "tokenizer.json"),
)
"""Good commands: the memory of the like ones is what bad input is compared with."""


def train_commands() -> dict[str, list[str]]:
    """Spell the training of each run, to be run in the folder of the good data."""
    commands = {}
    for name, (recipe, files, fields) in RUNS.items():
        own = [part if part.startswith("-") else f"data/{part}" for part in files]
        commands[name] = ["train", recipe, *own, *(part for each in fields for part in ("--set", each)), "--out", name]
    commands[TWIN] = [*commands["translation"][:-1], TWIN, "--set", "training.seed=2"]
    return commands


def write_data(folder: Path) -> None:
    """Write the data of every task."""
    folder.mkdir()
    draw = random.Random(0)
    lines = [" ".join(draw.choices(["ab", "ba", "aa", "cab"], k=draw.randint(1, 4))) for _ in range(200)]
    lines = list(dict.fromkeys(lines))[:60]
    texts = {
        "pairs.source": "".join(f"{line}\n" for line in lines),
        "pairs.target": "".join(f"{line[::-1]}\n" for line in lines),
        "few.source": "ab\nba cab\n",
        "few.target": "ba\nbac ab\n",
        "text.txt": "".join(f"{line}\n" for line in lines),
        "labelled.tsv": "".join(f"{line}\t{'odd' if len(line) % 2 else 'even'}\n" for line in lines),
        "instructions.jsonl": "".join(json.dumps({"prompt": line, "answer": line[::-1]}) + "\n" for line in lines),
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    for label, base in (("dark", 0), ("light", 128)):
        (folder / "images" / label).mkdir(parents=True)
        for number in range(12):
            rows = [bytes(base + draw.randrange(100) for _ in range(8)) for _ in range(8)]
            (folder / "images" / label / f"{number}.png").write_bytes(png(8, 8, rows))


def png(width: int, height: int, rows: list[bytes], chunks: tuple[tuple[bytes, bytes], ...] = ()) -> bytes:
    """Spell a grey PNG, whatever its header claims, with further chunks before the pixels."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows))
    parts = ((b"IHDR", header), *chunks, (b"IDAT", pixels), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(name, content) for name, content in parts)


def png_chunk(name: bytes, content: bytes) -> bytes:
    """Spell a PNG chunk with its checksum."""
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def prepare(folder: Path, call: Callable[[list[str]], int]) -> dict[str, int]:
    """Write the data, train the runs, and run the good commands.

    Args:
        folder: to write into; commands run in it.
        call: runs a command line and returns its peak memory in KiB; raises where it does not end well.

    Returns:
        The highest peak of each command.
    """
    write_data(folder / "data")
    commands = [*train_commands().values(), *map(list, GOOD)]
    peaks: dict[str, int] = {}
    for command in commands:
        peaks[command[0]] = max(peaks.get(command[0], 0), call(command))
    return peaks
