"""Healthy models of all families, and validation batches for each."""

from typing import Any

import torch

import transom
from tests.models.combinations import SET_TEXTS
from tests.models.test_from_python import MODELS
from transom.data.batch import (
    Batch,
    ContrastiveBatch,
    ImageBatch,
    LabeledTextBatch,
    LanguageBatch,
    MaskedBatch,
    PaddedSequences,
    TranslationBatch,
)
from transom.data.tokenizer.special_tokens import EOS, PAD, SOS
from transom.inspection.doctor.checks import CHECKS
from transom.inspection.doctor.checkup import Checkup
from transom.inspection.doctor.finding import Finding
from transom.models.base import Network

FAMILIES = MODELS
"""Small models by family."""

HEALTHY: dict[str, dict[str, Any]] = MODELS | {f"{i} {fields['kind']}": fields for i, fields in enumerate(SET_TEXTS) if i % 2 == 0}
"""Models of every family, with components of every kind."""


def built(fields: dict[str, Any]) -> Network:
    """Build a model in float32 with initial weights, the same each time."""
    torch.manual_seed(1)
    return transom.build(fields).eval()


def texts(vocab: int, first: int, n: int = 12, length: int = 12) -> PaddedSequences:
    """Draw texts of 4 to ``length`` tokens."""
    draw = torch.Generator().manual_seed(3)
    rows = [[first, *torch.randint(4, vocab, (3 + i * 7 % (length - 3),), generator=draw).tolist()] for i in range(n)]
    return PaddedSequences.pad(rows)


def next_tokens(text: PaddedSequences) -> torch.Tensor:
    """Return the labels of a text: the next token of each, and the end of sequence."""
    following = torch.cat([text.tokens[:, 1:], torch.full((len(text.tokens), 1), PAD)], 1)
    last = torch.arange(text.tokens.shape[1]) == text.lengths[:, None] - 1
    return torch.where(last, EOS, following)


def data_for(model: Network) -> list[Batch]:
    """Draw validation data for a model: two batches."""
    c: Any = model.config
    draw = torch.Generator().manual_seed(4)
    if hasattr(c, "image_size"):
        labels = torch.randint(len(c.classes), (40,), generator=draw)
        return [ImageBatch(torch.rand(40, c.channels, c.image_size, c.image_size, generator=draw), labels, tuple(range(40)))] * 2
    size, ids = getattr(c, c.VOCABULARIES[-1]), tuple(range(12))
    batches = list[Batch]()
    for n in (12, 9):
        text, other = texts(size, EOS, length=n), texts(size, SOS, length=n)
        if "seq2seq" in c.kind:
            batches.append(TranslationBatch(text, other, next_tokens(other), ids))
        elif "decoder" in c.kind:
            batches.append(LanguageBatch(text, next_tokens(text), ids))
        elif c.kind == "text-embedder":
            batches.append(ContrastiveBatch(text, other, ids))
        elif c.kind == "text-classifier":
            batches.append(LabeledTextBatch(text, torch.arange(12) % len(c.classes), ids))
        else:
            labels = text.tokens if c.kind == "encoder" else text.tokens % len(c.classes)
            batches.append(MaskedBatch(text, labels, text.segments > 0, ids))
    return batches


def checkup_of(fields: dict[str, Any] | Network, **known: Any) -> Checkup:
    """Prepare the examination of a model on drawn data."""
    model = fields if isinstance(fields, Network) else built(fields)
    return Checkup(model, **{"batches": data_for(model)} | known)


def found_by(name: str, checkup: Checkup) -> Finding:
    """Run one check."""
    return CHECKS[name](checkup)
