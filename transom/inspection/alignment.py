"""Alignments: which source symbols each target symbol attended to."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transom.inputs.batch import Sequences, TranslationBatch
from transom.inspection.names import Recorder
from transom.inspection.recompute import attention_pattern


@dataclass(frozen=True)
class Alignment:
    """Cross-attention weights of one sentence pair.

    Attributes:
        source: the source's symbols, the end symbol among them unless it was left out.
        target: the target's symbols; a row's weights are those with which its symbol was predicted.
        weights: attention from each target symbol to each source symbol; a full row sums to 1.
        origin: where the weights come from, in words.
    """

    source: tuple[str, ...]
    target: tuple[str, ...]
    weights: Float[Tensor, "target source"]
    origin: str


@torch.no_grad()
def cross_attention(
    model: nn.Module, source: Sequence[int], target: Sequence[int], start: int = 1, end: int = 2
) -> Float[Tensor, "n_layers n_heads target source"]:
    """Read each decoder layer's cross-attention weights for one sentence pair.

    Row t holds the weights with which target symbol t is predicted from those before it; the last row and column are the end symbol's.

    Args:
        model: an encoder-decoder in evaluation mode.
        source: the source's tokens without the end symbol.
        target: the target's tokens without start and end symbols.
        start: the start symbol.
        end: the end symbol.
    """
    assert not model.training, "dropout would change what is looked at; call model.eval()"
    batch = TranslationBatch(Sequences.pad([[*source, end]]), Sequences.pad([[start, *target]]), torch.tensor([[*target, end]]), (0,))
    batch = batch.to(next(model.parameters()).device)
    recorder = Recorder(["decoder.blocks.*.cross.q", "decoder.blocks.*.cross.k"])
    model(batch, recorder.taps)
    attentions = [address.removesuffix(".q") for address in recorder.kept if address.endswith(".q")]
    return torch.cat([attention_pattern(attention, recorder.kept, batch).float().cpu() for attention in attentions])


def clearest_layer(weights: Float[Tensor, "n_layers n_heads target source"]) -> int:
    """Choose the layer whose heads' mean finds every source symbol best.

    A layer's figure is the mean over source symbols of the largest weight that any target symbol gives it: 1 for a one-to-one
    alignment, about 1 / source where all weight goes to one place or is spread evenly. It needs no reference alignment.
    """
    return int(weights.mean(1).amax(-2).mean(-1).argmax())


def merge(
    weights: Float[Tensor, "target source"], source_words: Sequence[int], target_words: Sequence[int]
) -> Float[Tensor, "target_words source_words"]:
    """Merge sub-words to words: sum over a source word's pieces, mean over a target word's.

    Args:
        weights: attention from target pieces to source pieces.
        source_words: the word, counted from 0 without gaps, of each source piece.
        target_words: the same of each target piece.
    """
    columns = torch.nn.functional.one_hot(torch.tensor(source_words)).to(weights)
    rows = torch.nn.functional.one_hot(torch.tensor(target_words)).to(weights)
    return (rows / rows.sum(0)).T @ weights @ columns
