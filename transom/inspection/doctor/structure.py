"""Checks of what a model may read: no later token, no other document, no padding, no other row of the batch."""

from dataclasses import replace

import torch
from torch import Tensor

from transom.config.model import PrefixMaskConfig
from transom.config.recurrent import RecurrentConfig
from transom.inspection.doctor.checkup import (
    MAX_LENGTH,
    Checkup,
    change_texts,
    columns,
    first_tokens,
    largest_difference,
    n_rows,
    other_tokens,
    outputs,
    padded_outputs,
    select_rows,
)
from transom.inspection.doctor.finding import Finding, not_applicable, within
from transom.layers.approximations.linformer import Linformer
from transom.layers.approximations.nystrom import Nystrom
from transom.models.base import GenerativeModel, LanguageModel, Network
from transom.models.encoder import MaskedEncoderTransformer
from transom.models.inputs import TensorBatch, TokenSequences

N_LEFT, N_RIGHT = 2, 3
"""Columns of padding that the check of padding adds."""


def causality(checkup: Checkup) -> Finding:
    """Change later tokens of a generative model, and compare the logits of earlier tokens.

    Tokens of a prefix, which may attend to each other, are left as they are.
    """
    model, batch = checkup.model, checkup.probe
    if not isinstance(model, GenerativeModel):
        return not_applicable("the model reads its whole input at once")
    text = _with_prefix(checkup)
    batch, length = replace(batch, decoder_input=text), text.tokens.shape[1]
    if length < 3:
        return not_applicable(f"the texts have {length} tokens; a later one is needed")
    whole, column = padded_outputs(model, batch), torch.arange(length, device=model.device)
    real, worst = text.segments > 0, 0.0
    for cut in sorted({0, length // 4, length // 2, length - 2}):
        later = (column > cut) & real if text.prefix is None else (column > cut) & real & ~text.prefix
        changed = replace(batch, decoder_input=other_tokens(text, later, model.unembedding.weight.shape[0]))
        seen = real & (column <= cut)
        worst = max(worst, largest_difference(padded_outputs(model, changed)[seen], whole[seen]))
    return within(
        worst,
        checkup.bound,
        f"changing later tokens changes earlier logits by at most {worst:.2g}; rounding explains {checkup.bound:.2g}",
        "a layer or mask reads the future: correct it, and train again, since such a model cannot generate",
    )


def _with_prefix(checkup: Checkup) -> TokenSequences:
    """Return the decoder input of the probe; a prefix-LM gets a prefix of a third of the columns if it has none."""
    text = checkup.probe.decoder_input
    assert text is not None
    if not isinstance(getattr(checkup.model.config, "mask", None), PrefixMaskConfig) or text.prefix is not None:
        return text
    column = torch.arange(text.tokens.shape[1], device=text.tokens.device)
    return replace(text, prefix=(column < max(len(column) // 3, 1)).expand_as(text.tokens))


def packing(checkup: Checkup) -> Finding:
    """Pack two documents into one row, and compare their outputs with those of each document alone."""
    model = checkup.model
    if not isinstance(model, LanguageModel | MaskedEncoderTransformer):
        return not_applicable("this model is trained on one text per row")
    if n_rows(checkup.probe) < 2:
        return not_applicable("the data have one text only")
    alone = [first_tokens(select_rows(checkup.probe, [row]), 32) for row in (0, 1)]
    packed = change_texts(alone[0], lambda _: _joined([text for each in alone if (text := each.decoder_input or each.source)]))
    difference = largest_difference(outputs(model, packed), torch.cat([outputs(model, each) for each in alone]))
    return within(
        difference,
        checkup.bound,
        f"two documents in one row give the logits of each alone within {difference:.2g}; rounding explains {checkup.bound:.2g}",
        "packed documents see each other: correct the mask or the positions of segments",
    )


def _joined(texts: list[TokenSequences]) -> TokenSequences:
    """Put texts one after another into one row, each as a segment of its own."""
    segments = [torch.full_like(text.segments, number) for number, text in enumerate(texts, 1)]
    prefixes = [text.prefix for text in texts if text.prefix is not None]
    tokens, positions = (torch.cat([getattr(text, name) for text in texts], 1) for name in ("tokens", "positions"))
    return TokenSequences(tokens, positions, torch.cat(segments, 1), torch.cat(prefixes, 1) if prefixes else None)


def padding(checkup: Checkup) -> Finding:
    """Add padding with arbitrary tokens right and left of the texts, and compare the outputs at the tokens."""
    model, batch = checkup.model, checkup.probe
    if batch.pixels is not None:
        return not_applicable("images and sounds of one size have no padding")
    window = getattr(model.config, "max_seq_len", MAX_LENGTH)  # tables of some layers end there
    batch = first_tokens(batch, max(min(window, MAX_LENGTH) - max(N_LEFT, N_RIGHT), 1))
    sides = ["right", "left"] if _reads_left_padding(model) else ["right"]
    differences = {side: largest_difference(outputs(model, change_texts(batch, _PAD[side])), outputs(model, batch)) for side in sides}
    worst = max(differences, key=lambda side: differences[side])
    return within(
        differences[worst],
        checkup.bound,
        f"padding on the {' and '.join(sides)} changes the outputs at tokens by at most {differences[worst]:.2g}"
        f"{f' ({worst})' if len(sides) > 1 else ''}; rounding explains {checkup.bound:.2g}",
        f"a layer reads padding on the {worst}: correct its mask, or embed and score one text at a time",
    )


def _reads_left_padding(model: Network) -> bool:
    """Return whether padding on the left is allowed: recurrent models refuse it, Linformer and Nystrom count columns."""
    return not isinstance(model.config, RecurrentConfig) and not any(isinstance(module, Linformer | Nystrom) for module in model.modules())


def _pad_right(text: TokenSequences) -> TokenSequences:
    return _padded(text, 0, N_RIGHT)


def _pad_left(text: TokenSequences) -> TokenSequences:
    return _padded(text, N_LEFT, 0)


_PAD = {"right": _pad_right, "left": _pad_left}


def _padded(text: TokenSequences, left: int, right: int) -> TokenSequences:
    """Add columns of padding whose tokens are those of the text; the tokens at padding that was there become others too."""

    def widened(x: Tensor, value: int | None = None) -> Tensor:
        before, after = x[:, :1].repeat(1, left), x[:, -1:].repeat(1, right)
        if value is not None:
            before, after = torch.full_like(before, value), torch.full_like(after, value)
        return torch.cat([before, x, after], 1)

    noisy = torch.where(text.segments > 0, text.tokens, text.tokens[:, :1])
    prefix, types = (None if x is None else widened(x, 0) for x in (text.prefix, text.token_types))
    return TokenSequences(widened(noisy), widened(text.positions), widened(text.segments, 0), prefix, text.text_length, types)


def batch(checkup: Checkup) -> Finding:
    """Run each text or image alone, and compare its outputs with those in the batch."""
    model, probe = checkup.model, checkup.probe
    n = n_rows(probe)
    if n < 2:
        return not_applicable("the data have one sample only")
    alone = torch.cat([outputs(model, _trimmed(select_rows(probe, [row]))) for row in range(n)])
    difference = largest_difference(alone, outputs(model, probe))
    return within(
        difference,
        checkup.bound,
        f"{n} samples alone have the outputs that they have in a batch, within {difference:.2g}; rounding explains {checkup.bound:.2g}",
        "a layer mixes the rows of a batch, such as a norm over the batch: replace it, or predict one sample at a time",
    )


def _trimmed(batch: TensorBatch) -> TensorBatch:
    """Cut padding on the right of the only row."""
    return change_texts(batch, lambda text: columns(text, slice(int((text.segments > 0).sum()))))
