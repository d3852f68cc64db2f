"""Checks of step-by-step decoding: with the cache of the model, and with the faster decoder that predictions use."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from transom.data.batch import PaddedSequences
from transom.decoding.backends.decoder_backend import build_decoder_backend
from transom.decoding.backends.whole_passes import WholePassDecoder
from transom.decoding.search.interfaces import StepModel
from transom.inspection.doctor.checkup import Checkup, columns, largest_difference, other_tokens, rounding_bound, select_rows
from transom.inspection.doctor.finding import Finding, not_applicable, within
from transom.models.base import GenerativeModel, LanguageModel
from transom.models.inputs import TensorBatch, TokenSequences
from transom.planning.precision import choose_precision

MAX_STEPS = 12
"""Decoding steps that are compared."""


def cache(checkup: Checkup) -> Finding:
    """Decode step by step with the cache, and compare the logits with those of passes over the whole texts."""
    model = checkup.model
    if not isinstance(model, GenerativeModel):
        return not_applicable("the model does not generate")
    if (texts := _equal_texts(checkup)) is None:
        return not_applicable("the texts have fewer than 3 tokens")
    difference = largest_difference(step_by_step(model, texts, model), step_by_step(WholePassDecoder(model), texts, model))
    return within(
        difference,
        checkup.bound,
        f"steps with the cache give the logits of whole passes within {difference:.2g}; rounding explains {checkup.bound:.2g}",
        "generated texts differ from what was trained: correct the cache of the layer, its positions or its reordering",
    )


def decoder(checkup: Checkup) -> Finding:
    """Decode with the decoder that predictions use on this machine, and compare its logits with those of whole passes in its dtype."""
    model = checkup.model
    if not isinstance(model, GenerativeModel):
        return not_applicable("the model does not generate")
    if (texts := _equal_texts(checkup)) is None:
        return not_applicable("the texts have fewer than 3 tokens")
    dtype = choose_precision("auto", model.device).dtype
    eager = checkup.bf16 if dtype == torch.bfloat16 else model
    assert isinstance(eager, GenerativeModel) and isinstance(checkup.exact, GenerativeModel)
    backend = build_decoder_backend(eager)
    if backend is eager:
        return not_applicable("predictions decode with the model itself")
    exact = step_by_step(WholePassDecoder(checkup.exact), texts, model)
    bound = rounding_bound(step_by_step(WholePassDecoder(eager), texts, model), exact)
    difference = largest_difference(step_by_step(backend, texts, model), exact)
    name = type(backend).__name__
    return within(
        difference,
        bound,
        f"{name} in {str(dtype).removeprefix('torch.')} gives the float64 logits within {difference:.2g}; rounding explains {bound:.2g}",
        "set TRANSOM_KERNELS=reference to decode with the model itself, and report this model",
    )


def _equal_texts(checkup: Checkup) -> TensorBatch | None:
    """Return the two longest rows of the probe with their targets cut to the same length; None if they are too short."""
    text = checkup.probe.decoder_input
    assert text is not None
    longest = (text.segments == text.segments[:, :1]).sum(1).argsort(descending=True, stable=True)
    batch = select_rows(checkup.probe, longest[:2].tolist())
    text = batch.decoder_input
    assert text is not None
    n = min(int((text.segments == text.segments[:, :1]).sum(1).min()), MAX_STEPS + 2)
    return (
        None if n < 3 else replace(batch, decoder_input=TokenSequences.from_tokens(text.tokens[:, :n], torch.ones_like(text.tokens[:, :n])))
    )


def _padded_sequences(text: TokenSequences) -> PaddedSequences:
    """Convert sequences to those that decoders read."""
    return PaddedSequences(text.tokens, text.positions, text.segments, (text.segments > 0).sum(1))


@torch.no_grad()
def step_by_step(steps: StepModel[Any, Any], batch: TensorBatch, model: GenerativeModel) -> Tensor:
    """Return the logits after each token, (rows, steps, vocab), with two beams per text.

    The first beam reads the text, the second one other tokens after the prompt. After half of the steps the beams change places.
    """
    text = batch.decoder_input
    assert text is not None
    length, n_start = text.tokens.shape[1], 1
    if isinstance(model, LanguageModel):
        n_start = max(length // 3, 1)
        memory = steps.encode(_padded_sequences(columns(text, slice(n_start))))
    else:
        assert batch.source is not None
        memory = steps.encode(_padded_sequences(batch.source))
    after = (torch.arange(length, device=text.tokens.device) >= n_start).expand_as(text.tokens)
    other = other_tokens(text, after, model.unembedding.weight.shape[0])
    rows = torch.stack([text.tokens, other.tokens], 1).flatten(0, 1)
    cache = steps.start(memory, 2, length - n_start + 1)  # of the text's length: some rotary scalings depend on it
    found, half = list[Tensor](), max((n_start + length + 1) // 2, n_start + 2)
    for end in range(n_start, length + 1):
        if end == half:
            swap = torch.arange(len(rows), device=rows.device) ^ 1
            cache.reorder(swap)
            rows = rows[swap]
        found.append(steps.step(rows[:, end - 1 : end], cache))
    return torch.cat(found, 1).float() if found[0].dtype == torch.bfloat16 else torch.cat(found, 1)
