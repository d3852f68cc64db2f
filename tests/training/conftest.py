"""A small recipe of each task, with data of its own, and sittings of a run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from transom.checkpoints.run_folder import RunFolder
from transom.config.model_overrides import NO_OVERRIDES, UserOverrides
from transom.config.recipe import Recipe
from transom.tasks.classification.schema import ClassificationRecipe
from transom.tasks.embedding.schema import EmbeddingRecipe
from transom.tasks.image_classification.schema import ImageRecipe
from transom.tasks.masked.schema import MaskedRecipe
from transom.tasks.tagging.schema import TaggingRecipe
from transom.tasks.task import build_training_setup
from transom.tasks.translation.schema import TranslationRecipe
from transom.training.events import TrainingFinished
from transom.training.setup import TrainingSetup
from transom.training.train_loop import train

WIDTHS = {"d_model": 16, "n_heads": 2, "d_ff": 32, "max_seq_len": 16, "dropout": 0.1}
MODEL: dict[str, Any] = WIDTHS | {"n_layers": 1}
TRAINING: dict[str, Any] = {
    "max_steps": 10,
    "batch_tokens": 64,
    "grad_accum_steps": 2,
    "learning_rate": 0.01,
    "schedule": {"kind": "cosine", "warmup_steps": 5},
    "precision": "bf16",
    "average": {"kind": "checkpoints", "n_checkpoints": 2},
    "validate_every": 4,
    "checkpoint_every": 3,
    "log_every": 2,
}
ANIMALS, SAYS, COLOURS = ["dog", "cat", "bird"], ["barks", "purrs", "sings"], ["red", "green", "blue"]


@pytest.fixture
def masked(tmp_path: Path) -> MaskedRecipe:
    """Sentences whose animal is told by what stands behind it."""
    lines = [f"the {colour} {animal} {says}" for colour in COLOURS for animal, says in zip(ANIMALS, SAYS, strict=True)] * 8
    (tmp_path / "text.txt").write_text("\n".join(f"{line} {i}" for i, line in enumerate(lines)))
    data = {"train": {"files": str(tmp_path / "text.txt"), "document": "line"}}
    tokenizer = {"kind": "whitespace", "vocab_size": 100}
    return MaskedRecipe.model_validate({"data": data, "tokenizer": tokenizer, "model": MODEL, "training": TRAINING})


@pytest.fixture
def classes(tmp_path: Path) -> ClassificationRecipe:
    """Texts whose class is told by one word."""
    lines = [
        f"{i} a {word} thing\t{label}" for i in range(40) for label, words in (("animal", ANIMALS), ("colour", COLOURS)) for word in words
    ]
    (tmp_path / "labelled.tsv").write_text("\n".join(lines))
    data = {"train": {"file": str(tmp_path / "labelled.tsv")}}
    tokenizer = {"kind": "whitespace", "vocab_size": 60}
    return ClassificationRecipe.model_validate({"data": data, "tokenizer": tokenizer, "model": MODEL, "training": TRAINING})


@pytest.fixture
def pairs(tmp_path: Path) -> EmbeddingRecipe:
    """Pairs whose sides share the number and the word, said in two ways."""
    words = list(zip(ANIMALS + COLOURS, ["perro", "gato", "ave", "rojo", "verde", "azul"], strict=True))
    lines = [(f"{i} {word}", f"{word_2} {i}") for i in range(20) for word, word_2 in words]
    parts = {"train": [line for n, line in enumerate(lines) if n % 11], "valid": lines[::11]}
    for part, chosen in parts.items():
        for side, name in enumerate(("left", "right")):
            (tmp_path / f"{name}.{part}").write_text("\n".join(line[side] for line in chosen) + "\n")
    data = {part: {"source": str(tmp_path / f"left.{part}"), "target": str(tmp_path / f"right.{part}")} for part in parts}
    tokenizer = {"kind": "whitespace", "vocab_size": 60}
    return EmbeddingRecipe.model_validate({"data": data, "tokenizer": tokenizer, "model": MODEL, "training": TRAINING})


@pytest.fixture
def tags(tmp_path: Path) -> TaggingRecipe:
    """Sentences of people and things, of which an entity has one word or two."""
    names = ["Ana", "Luis\tB-PER\nTorres", "Elena"]
    sentences = [
        f"{i}\tO\nthe\tO\n{colour}\tO\n{animal}\tB-ANIMAL\nsees\tO\n{name}\t{'I' if 'Torres' in name else 'B'}-PER\n"
        for i in range(8)
        for colour in COLOURS
        for animal, name in zip(ANIMALS, names, strict=True)
    ]
    (tmp_path / "tagged.conll").write_text("\n".join(sentences))
    data = {"train": {"file": str(tmp_path / "tagged.conll")}}
    tokenizer = {"kind": "whitespace", "vocab_size": 60}
    return TaggingRecipe.model_validate({"data": data, "tokenizer": tokenizer, "model": MODEL, "training": TRAINING})


@pytest.fixture
def languages() -> TranslationRecipe:
    """Sequences of letters that are to be copied, many of them, or reversed, few: only the tag tells which."""
    sizes = {"n_valid": 10, "n_test": 10, "n_symbols": 6, "max_length": 4}
    rules = [{"tag": f"2-{kind}", "generate": {"kind": kind, "n_train": n, **sizes}} for kind, n in (("copy", 200), ("reverse", 100))]
    return TranslationRecipe.model_validate(
        {
            "data": {"languages": rules},
            "tokenizer": {"kind": "whitespace", "vocab_size": 20},
            "model": {**WIDTHS, "n_encoder_layers": 1, "n_decoder_layers": 1},
            "training": TRAINING | {"validate_bleu": 4},
            "decoding": {"beam_size": 2, "max_length": 8},
        }
    )


VISION = {"kind": "vision-transformer", "image_size": 8, "patch_size": 4, "d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 32}
CONVOLUTIONAL = {"kind": "convolutional", "image_size": 8, "stem": {"channels": [8, 8]}, "d_model": 16}
OF_IMAGES: dict[str, Any] = {name: value for name, value in TRAINING.items() if name != "batch_tokens"} | {
    "batch_size": 16,
    "average": {"kind": "ema", "decay": 0.5},
    "augmentation": {"shift": 1, "horizontal_flip": True, "randaugment": 1, "mixup": 0.2, "cutmix": 1.0},
}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Draw a bar that lies or stands, anywhere, in two shades."""
    for number in range(48):
        image = Image.new("RGB", (10, 10), (40, 40, 60))
        place = 1 + number % 7
        lies = number % 2
        image.paste((200 + number, 180, 90), (0, place, 10, place + 3) if lies else (place, 0, place + 3, 10))
        file = tmp_path / "photos" / ("lying" if lies else "standing") / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        image.save(file)
    return tmp_path / "photos"


def of_images(model: dict[str, Any], photos: Path) -> ImageRecipe:
    """Bars, lying or standing, for a network."""
    data = {"train": {"images": str(photos)}, "valid_fraction": 0.25}
    return ImageRecipe.model_validate({"data": data, "model": model, "training": OF_IMAGES})


@pytest.fixture
def vision(photos: Path) -> ImageRecipe:
    """Images for a Vision Transformer."""
    return of_images(VISION, photos)


@pytest.fixture
def convolutional(photos: Path) -> ImageRecipe:
    """Images for convolutions alone."""
    return of_images(CONVOLUTIONAL, photos)


def changed(recipe: Recipe, processes: int = 1, **training: Any) -> Recipe:
    """Change some of a run's fields, and the number of processes that share its batches."""
    raw = recipe.model_dump()
    raw["training"] |= training
    raw["parallel"] = {"data": processes}
    return type(recipe).model_validate(raw)


def sit(recipe: Recipe, out: Path, *callbacks: Any, user_overrides: UserOverrides = NO_OVERRIDES) -> TrainingFinished:
    """One sitting of a run in ``out``, going on with what is there."""
    with RunFolder.create(out, resume=True) as folder:
        return train(build_training_setup(recipe, Path(), folder, user_overrides=user_overrides), callbacks)


def measured(parts: TrainingSetup) -> tuple[dict[str, float], tuple[Mapping[str, Any], ...]]:
    """Validate the weights that a run would begin with, in float32: all figures, and the answers that are shown."""
    model, exactly = parts.eval_model.float(), torch.autocast("cpu", enabled=False)
    scores, samples = parts.task.predict_validation(model, exactly, parts.precision)
    return parts.task.evaluate(model, exactly) | scores, samples
