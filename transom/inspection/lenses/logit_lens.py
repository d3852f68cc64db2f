"""The logit lens: probabilities that the residual stream implies after each block (nostalgebraist 2020)."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transom.decoding.inference import eval_mode
from transom.errors import ConfigError
from transom.inspection.activations import Activations
from transom.inspection.lenses.readout import (
    MAX_LOGITS,
    divergence,
    flat_logits,
    is_pooled,
    lens_input,
    log_probs,
    read_out,
    record_streams,
    streams,
)
from transom.models.base import Network

Translate = Callable[[int, Tensor], Tensor]
"""Maps stream number i to a stream that the output layer reads; stream 0 is the embedding, stream i follows block i - 1."""


class LogitLens(NamedTuple):
    """Probabilities that the residual stream implies: softmax(W_U Norm(x_l)) for the stream x_l after each block (nostalgebraist 2020).

    The first stream is the embedded input, and the last one gives the model's own output. ``positions`` has size 1 for models with one
    answer per text or image.

    Attributes:
        streams: "embedding", then the path of each block.
        positions: position of each row of logits in the text; padding included.
        top_symbols: indices of the most probable symbols or classes, best first.
        top_probs: their probabilities.
        answers: index of the chosen symbol or class.
        answer_probs: its probability.
        answer_ranks: its rank, from 1.
        kl: Kullback-Leibler divergence of the implied distribution from the model's own, KL(own || implied), in nats.
    """

    streams: list[str]
    positions: list[int]
    top_symbols: Int[Tensor, "streams batch positions top"]
    top_probs: Float[Tensor, "streams batch positions top"]
    answers: Int[Tensor, "batch positions"]
    answer_probs: Float[Tensor, "streams batch positions"]
    answer_ranks: Int[Tensor, "streams batch positions"]
    kl: Float[Tensor, "streams batch positions"]


def logit_lens(
    model: Any,
    inputs: Any,
    *,
    positions: Sequence[int] | None = None,
    answers: Int[Tensor, "batch positions"] | None = None,
    top: int = 5,
    translate: Translate = lambda number, x: x,
) -> LogitLens:
    """Read probabilities from the residual stream after each block, through the model's final norm and output layer.

    The logits of a few positions and one block are in memory at a time.

    Args:
        model: a run loaded by ``transom.load``, or a model, compiled or not: any Transformer with logits per token, text or image.
        inputs: a text (for a loaded run; the target side of a translator is its own translation), or a batch or tensor.
        positions: positions to read; None for all. Models with one answer per text or image have position 0 only.
        answers: indices of the symbols or classes whose probability and rank are wanted; None for the model's own best.
        top: number of most probable symbols per block and position.
        translate: maps each stream before it is read, as ``TunedLens.translate`` does; the logit lens leaves it as it is.

    Raises:
        ConfigError: the model has no residual stream that leads to logits, or a position does not exist.
        DataError: a text exceeds the context window.
    """
    network, batch, _ = lens_input(model, inputs)
    _, a = record_streams(network, batch)
    return read_streams(a, positions=positions, answers=answers, top=top, translate=translate)


def read_streams(
    a: Activations,
    *,
    positions: Sequence[int] | None = None,
    answers: Int[Tensor, "batch positions"] | None = None,
    top: int = 5,
    translate: Translate = lambda number, x: x,
) -> LogitLens:
    """Read probabilities from the streams of a pass that recorded them; arguments and errors as for ``logit_lens``."""
    network, own = a.model, flat_logits(a["logits"])
    chosen = list(range(own.shape[1])) if positions is None else list(positions)
    if bad := [each for each in chosen if not 0 <= each < own.shape[1]]:
        raise ConfigError(f"positions: expected positions from 0 to {own.shape[1] - 1}, found {bad[0]}")
    own = own[:, chosen]
    wanted = own.argmax(-1) if answers is None else answers.to(own.device)
    names, rows = list[str](), list[tuple[Tensor, ...]]()
    with torch.no_grad(), eval_mode(network):
        for number, (name, x) in enumerate(streams(a)):
            names.append(name)
            parts = []
            for part in _chunks(chosen, own):
                x_part = translate(number, x if is_pooled(network) else x[:, [chosen[i] for i in part]])
                parts.append(_read(network, read_out(network, a.batch, x_part), own[:, part], wanted[:, part], top))
            rows.append(tuple(torch.cat(each, 1) for each in zip(*parts, strict=True)))
    symbols, probs, answer_probs, ranks, kl = (torch.stack(each) for each in zip(*rows, strict=True))
    return LogitLens(names, chosen, symbols, probs, wanted, answer_probs, ranks, kl)


def _chunks(positions: Sequence[int], own: Tensor) -> Iterator[list[int]]:
    """Yield indices of positions whose logits are computed together."""
    size = max(MAX_LOGITS // (own.shape[0] * own.shape[2]), 1)
    for start in range(0, len(positions), size):
        yield list(range(start, min(start + size, len(positions))))


def _read(network: Network, implied: Tensor, own: Tensor, answers: Tensor, top: int) -> tuple[Tensor, ...]:
    """Return the best symbols, their probabilities, probability and rank of the answers, and KL(own || implied)."""
    log_p = log_probs(network, implied)
    best = log_p.topk(min(top, log_p.shape[-1]))
    of_answer = log_p.gather(-1, answers[..., None])
    rank = (log_p > of_answer).sum(-1) + 1
    return best.indices, best.values.exp(), of_answer[..., 0].exp(), rank, divergence(network, own, implied).clamp_min(0.0)
