"""Batches built from plain tensors, for calls such as ``model(tokens, attention_mask=mask)``."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from transom.errors import TransomError


@dataclass(frozen=True)
class TokenSequences:
    """One sequence per row, padded left or right.

    Attributes:
        tokens: token ids; ids at padding are ignored.
        positions: position of each token in its sequence, from 0.
        segments: 1 at tokens, 0 at padding.
        prefix: True at tokens of a prefix-LM's prefix; None without one.
        text_length: length that each text may reach after further tokens, by which some rotary scalings choose their frequencies; None if
            the texts are complete.
        token_types: type of each token, such as 0 in the first text of a pair and 1 in the second; None if all are of type 0.
    """

    tokens: Int[Tensor, "batch length"]
    positions: Int[Tensor, "batch length"]
    segments: Int[Tensor, "batch length"]
    prefix: Bool[Tensor, "batch length"] | None = None
    text_length: int | None = None
    token_types: Int[Tensor, "batch length"] | None = None

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Return the sequences with ``change`` applied to each of their tensors."""
        changed: dict[str, Any] = {name: change(x) for name, x in vars(self).items() if isinstance(x, Tensor)}
        return replace(self, **changed)

    @classmethod
    def from_tokens(cls, tokens: Tensor, attention_mask: Tensor | None = None, pad_token_id: int | None = None) -> Self:
        """Build sequences from token ids and an attention mask, both (batch, length).

        Args:
            tokens: token ids.
            attention_mask: 1 or True at tokens, 0 or False at padding; None to derive it from ``pad_token_id``.
            pad_token_id: id of the padding token; None if there is none.

        Raises:
            TransomError: ``tokens`` are not integers of shape (batch, length), or ``attention_mask`` has another shape.
        """
        if tokens.dim() != 2 or tokens.is_floating_point():
            raise TransomError(f"tokens: expected integers of shape (batch, length), found {tokens.dtype} of shape {tuple(tokens.shape)}")
        if attention_mask is None:
            attention_mask = torch.ones_like(tokens) if pad_token_id is None else tokens != pad_token_id
        if attention_mask.shape != tokens.shape:
            raise TransomError(
                f"attention_mask: expected the shape of the tokens, {tuple(tokens.shape)}, found {tuple(attention_mask.shape)}; give 1 for"
                " each token and 0 for padding"
            )
        segments = (attention_mask != 0).long()
        return cls(tokens, (segments.cumsum(1) - 1).clamp(min=0), segments)


@dataclass(frozen=True)
class TensorBatch:
    """Batch of plain tensors; each model family reads only some of the fields.

    Attributes:
        source: input of an encoder, or the left texts of pairs.
        decoder_input: input of a decoder, or the right texts of pairs.
        pixels: images, from 0 to 1.
    """

    source: TokenSequences | None = None
    decoder_input: TokenSequences | None = None
    pixels: Float[Tensor, "batch channels height width"] | None = None
    target = property(lambda self: self.decoder_input)  # the second side of pairs


def make_pair_batch(
    source: Tensor, source_mask: Tensor | None, target: Tensor | None, target_mask: Tensor | None, pad_token_id: int | None
) -> TensorBatch:
    """Build a batch of source and target sequences.

    Raises:
        TransomError: the target is missing or has another number of rows than the source, or tokens and mask differ in shape.
    """
    if target is None or len(target) != len(source):
        found = "none" if target is None else f"{len(target)} rows"
        raise TransomError(f"decoder_tokens: expected the target's token ids, {len(source)} rows like the source, found {found}")
    return TensorBatch(
        TokenSequences.from_tokens(source, source_mask, pad_token_id), TokenSequences.from_tokens(target, target_mask, pad_token_id)
    )
