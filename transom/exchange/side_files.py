"""Class names and the normalization of images, which files beside the weights determine."""

from collections.abc import Mapping
from typing import Any

from transom.errors import CheckpointError
from transom.exchange.config_rows import Fields
from transom.files.limits import MAX_CLASSES

MULTI_LABEL = "multi_label_classification"
"""Value of ``problem_type`` where a sample has any number of labels."""

_RESCALE = 1 / 255
_FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}
_FILTER = 3
"""Resampling filter of Pillow that we resize images with."""


def read_classes(foreign: Mapping[str, Any], n_logits: int) -> Fields:
    """Return the class names of ``id2label``, and whether a sample has any number of labels.

    Args:
        foreign: fields of ``config.json``.
        n_logits: number of outputs of the classifier, for a file without names.

    Raises:
        CheckpointError: the names are no table from 0, 1, 2, ... to distinct texts.
    """
    labels = foreign.get("id2label") or {str(n): f"LABEL_{n}" for n in range(n_logits)}
    if not isinstance(labels, dict) or len(labels) > MAX_CLASSES:
        raise CheckpointError(f"config.json: id2label: expected a table of at most {MAX_CLASSES:,} names, found {str(labels)[:80]}")
    names = [labels.get(str(n)) for n in range(len(labels))]
    if not all(isinstance(name, str) and name for name in names) or len({*names}) < len(names):
        raise CheckpointError(f"config.json: id2label: expected distinct names for 0 to {len(labels) - 1}, found {str(labels)[:80]}")
    return {"classes": tuple(names), **({"multi_label": True} if foreign.get("problem_type") == MULTI_LABEL else {})}


def write_classes(ours: Mapping[str, Any]) -> Fields:
    """Return ``id2label``, ``label2id`` and ``problem_type``."""
    names = ours["classes"]
    labels = {"id2label": {str(n): name for n, name in enumerate(names)}, "label2id": {name: n for n, name in enumerate(names)}}
    return labels | {"problem_type": MULTI_LABEL if ours.get("multi_label") else "single_label_classification"}


def read_normalization(preprocessor: Mapping[str, Any] | None, image_size: int, channels: int) -> tuple[Fields, list[str]]:
    """Return mean and standard deviation of the channels, and lines on what is not carried over.

    Args:
        preprocessor: fields of ``preprocessor_config.json``; None without such a file.
        image_size: width and height of the model's images.
        channels: number of channels.

    Raises:
        CheckpointError: images have another size or another range than that of the model.
    """
    found = preprocessor or {}
    size = found.get("crop_size" if found.get("do_center_crop") else "size", image_size)
    sides = {size} if isinstance(size, int) else {*size.values()} if isinstance(size, dict) else set()
    if sides != {image_size}:
        raise CheckpointError(f"preprocessor_config.json: size: expected {image_size}, as in config.json, found {str(size)[:80]}")
    scale = found.get("rescale_factor", _RESCALE)
    if found.get("do_rescale", True) is not True or not isinstance(scale, float) or abs(scale - _RESCALE) > 1e-9:
        raise CheckpointError(f"preprocessor_config.json: rescale_factor: expected 1/255, found {scale!r:.80}; transom cannot express it")
    neutral = {"image_mean": [0.0] * channels, "image_std": [1.0] * channels}
    shown = found if found.get("do_normalize", True) else {}
    mean, std = (tuple(shown.get(name) or neutral[name]) for name in ("image_mean", "image_std"))
    notes = ["images that are not square are cropped here to their center square, and resized to it"]
    if (used := found.get("resample", _FILTER)) != _FILTER:
        notes.append(f"resample = {_FILTERS.get(used, used)} is not carried over: images are resized with the bicubic filter")
    return {"pixel_mean": mean, "pixel_std": std}, notes


def write_preprocessor(ours: Mapping[str, Any], kind: str) -> Fields:
    """Return the fields of ``preprocessor_config.json``; ``kind`` is the library's class of image processor."""
    side = ours["image_size"]
    return {
        "image_processor_type": kind,
        "do_resize": True,
        "size": {"height": side, "width": side},
        "resample": _FILTER,
        "do_rescale": True,
        "rescale_factor": _RESCALE,
        "do_normalize": True,
        "image_mean": list(ours["pixel_mean"]),
        "image_std": list(ours["pixel_std"]),
    }
