"""Every kind of HTML page that transom writes, from tiny runs on made-up data."""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

from transom.cli.main import main

LONG_WORD = "Λοπαδοτεμαχοσελαχογαλεοκρανιολειψανοδριμυποτριμματοσιλφιο"
"""A word that no phone shows in one line; as all data here it is Greek, so that a Latin word of a page is none of the data."""

SHORT = ("max_steps=8", "validate_every=4", "checkpoint_every=4", "log_every=1", "precision=fp32")
"""Of training: two validations, eight points in each chart."""

SMALL = ("d_model=16", "n_layers=1", "n_heads=2", "d_ff=16")
"""Of the model."""

CLASSES = ("πολύ_αρνητικό", "αρνητικό", "Ουδέτερο", "θετικό", "πολύ θετικό, χωρίς ίχνος επιφυλάξεων")


def sentences(n: int, seed: int = 1) -> list[str]:
    """Draw sentences of a small language, one of whose words is long."""
    draw = random.Random(seed)
    words = ["ήλιος", "φεγγάρι", "άστρα", "και", "το", "λάμπει", "ήσυχα", "υπευθυνότητα", "χαρακτηριστικότατα", LONG_WORD]
    return [" ".join(draw.choices(words, weights=[9] * 9 + [1], k=draw.randint(4, 24))) for _ in range(n)]


def train(folder: Path, recipe: str, *arguments: str, model: tuple[str, ...] = SMALL, training: tuple[str, ...] = ()) -> Path:
    """Train a tiny run; return its folder."""
    fields = [f"model.{field}" for field in model] + [f"training.{field}" for field in (*SHORT, *training)]
    sets = [part for field in fields for part in ("--set", field)]
    assert main(["train", recipe, *arguments, *sets, "--out", str(folder / recipe), "--json"]) == 0
    return folder / recipe


def _write(path: Path, lines: list[str]) -> str:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def _translation(folder: Path) -> Iterator[Path]:
    source, target = (_write(folder / name, sentences(200, seed)) for name, seed in (("source", 1), ("target", 2)))
    model = ("d_model=16", "n_encoder_layers=1", "n_decoder_layers=1", "n_heads=2", "d_ff=16", "max_seq_len=512")
    short = ("batch_tokens=512", "validate_bleu=4")
    run = train(folder, "translation", "--source", source, "--target", target, model=model, training=short)
    yield run / "report.html"
    arguments = ["--input", _write(folder / "few", sentences(3)), "--alignment", "--html", str(folder / "alignments.html")]
    assert main(["translate", str(run), *arguments, "--output", str(folder / "translations")]) == 0
    yield folder / "alignments.html"
    assert main(["explain", str(run), "ήλιος και φεγγάρι", "--out", str(folder / "calculation.html")]) == 0
    yield folder / "calculation.html"


def _language(folder: Path) -> Iterator[Path]:
    text = _write(folder / "text.txt", sentences(300))
    run = train(folder, "text-bpe", "--text", text, training=("batch_tokens=512",))
    yield run / "report.html"
    sizes = ["--lengths", "32,64,128", "--repeats", "1"]
    assert main(["compare-attention", str(run), "--text", " ".join(sentences(4)), *sizes, "--out", str(folder / "attention.html")]) == 0
    yield folder / "attention.html"


def _masked(folder: Path) -> Iterator[Path]:
    yield (
        train(folder, "text-masked", "--text", _write(folder / "text.txt", sentences(300)), training=("batch_tokens=512",)) / "report.html"
    )


def _instructions(folder: Path) -> Iterator[Path]:
    lines = [json.dumps({"prompt": prompt, "answer": prompt[::-1]}) for prompt in sentences(600)]
    file = _write(folder / "instructions.jsonl", lines)
    yield train(folder, "instructions", "--instructions", file, training=("batch_tokens=512", "validate_samples=2")) / "report.html"


def _classes(folder: Path) -> Iterator[Path]:
    lines = [f"{text}\t{CLASSES[i * i % 7 % 5]}" for i, text in enumerate(sentences(300))]
    yield from _labeled(folder, lines)


def _labels(folder: Path) -> Iterator[Path]:
    lines = [f"{text}\t{'|'.join(CLASSES[i % 3 : i % 5 + 1])}" for i, text in enumerate(sentences(300))]
    yield from _labeled(folder, lines, "--multi-label")


def _labeled(folder: Path, lines: list[str], *options: str) -> Iterator[Path]:
    """Train a classifier and evaluate it on its own data."""
    file = _write(folder / "labeled.tsv", lines)
    run = train(folder, "text-classes", "--labeled-data", file, *options, training=("batch_tokens=512",))
    yield run / "report.html"
    assert main(["classify", str(run), "--labeled-data", file, "--html", str(folder / "predictions.html")]) == 0
    yield folder / "predictions.html"


def _pairs(folder: Path) -> Iterator[Path]:
    source, target = (_write(folder / name, sentences(200, seed)) for name, seed in (("source", 1), ("target", 2)))
    yield train(folder, "text-pairs", "--source", source, "--target", target, training=("batch_tokens=512",)) / "report.html"


def _tags(folder: Path) -> Iterator[Path]:
    text = "\n\n".join("\n".join(f"{word} {'B-ΦΩΣ' if len(word) < 6 else 'O'}" for word in line.split()) for line in sentences(200))
    file = _write(folder / "tagged.conll", [text])
    yield train(folder, "tags", "--tagged", file, training=("batch_tokens=512",)) / "report.html"


def _images(folder: Path) -> Iterator[Path]:
    model = (*SMALL, "attention.pattern={kind='window-2d',size=3}")
    yield train(folder, "digits-vit", model=model, training=("batch_size=16",)) / "report.html"


def _sounds(folder: Path) -> Iterator[Path]:
    yield train(folder, "synthetic-sounds", training=("batch_size=16",)) / "report.html"


KINDS: dict[str, Callable[[Path], Iterator[Path]]] = {
    make.__name__.removeprefix("_"): make
    for make in (_translation, _language, _masked, _instructions, _classes, _labels, _pairs, _tags, _images, _sounds)
}
"""A function per task that writes its pages into a folder."""
