"""Sampling: the next token is drawn from the model's distribution, which a few rules reshape first.

A rule is a function of log probabilities, a row a text. A token at minus infinity is forbidden and stays so, at least one token of
each row survives, and equals share their fate: no rule depends on the order of the vocabulary or on the batch.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from transom.config.decoding import Sampling
from transom.data.tokenizer.special import PAD
from transom.decoding.search.loop import top_tokens
from transom.decoding.search.roles import NEVER, Hypothesis, Limits, Move, Progress

FEW = 64
"""Tokens among which a nucleus is looked for first; most are smaller, and sorting a whole vocabulary is slow."""


@dataclass(frozen=True)
class Sample:
    """Draw y_t from p(y | y_<t, x), as the settings reshape it, until the end symbol.

    The rules apply in the order of the transformers library: ``penalise_repetition``, ``penalise_counts``, ``warp``. The noise
    of a draw is a pure function of (seed, sample, place), whatever is drawn beside it. So an interrupted text goes on as it would have,
    but for penalties on counts, which start anew.

    Args:
        end: the end symbol.
        settings: the rules and the seed; at temperature 0 the likeliest token is taken, after penalties.
        samples: number of each source's sample, at least 0; sources of the same number get the same noise.
        first: place of the first new token in its whole text.
        seen: tokens that stood in each source's prompt, for the repetition penalty, on the search's device.
    """

    end: int
    settings: Sampling
    samples: tuple[int, ...]
    first: int = 0
    seen: Bool[Tensor, "sources vocab"] | None = None

    @property
    def n_beams(self) -> int:
        """One row a source."""
        return 1

    def begin(self, limits: Limits) -> "SampleSelection":
        """Start a search."""
        return SampleSelection(self, limits)


class SampleSelection:
    """The rows' noise, their log probabilities so far and which of them have ended."""

    def __init__(self, strategy: Sample, limits: Limits) -> None:
        """Draw all noise and start with log p = 0 everywhere."""
        assert len(strategy.samples) == len(limits.longest)
        device, n = limits.longest.device, strategy.first + limits.last_must_end_at
        noise = np.stack([_noise(n, strategy.settings.seed, sample) for sample in strategy.samples])
        self._strategy = strategy
        self._noise = torch.from_numpy(noise[:, strategy.first :]).to(device)  # (sources, longest)
        self._seen = strategy.seen
        self._log_p = torch.zeros(len(noise), device=device)
        self._done = torch.zeros_like(limits.longest, dtype=torch.bool)
        self._token_log_p = list[Tensor]()  # one (rows,) per step

    def advance(self, log_p: Float[Tensor, "rows vocab"], progress: Progress) -> Move:
        """Draw each row's token; behind the end symbol comes padding. A row that a broken model leaves no token ends."""
        settings, end = self._strategy.settings, self._strategy.end
        reshaped = self._penalised(log_p, progress)
        if settings.temperature == 0:
            tokens = top_tokens(reshaped, 1)[1][:, 0]
        else:
            reshaped = warp(reshaped.double(), settings)
            tokens = draw(reshaped, self._noise[:, progress.length])
        alive = reshaped.gather(1, tokens[:, None])[:, 0] > NEVER  # false for NaN too
        tokens = tokens.masked_fill(~alive, end)
        self._token_log_p.append(log_p.gather(1, tokens[:, None])[:, 0].masked_fill(self._done, 0.0))
        self._log_p = self._log_p + self._token_log_p[-1]
        tokens = tokens.masked_fill(self._done, PAD)
        self._done = self._done | (tokens == end)
        return Move(tokens, None, self._done)

    def _penalised(self, log_p: Float[Tensor, "rows vocab"], progress: Progress) -> Float[Tensor, "rows vocab"]:
        settings = self._strategy.settings
        if settings.repetition_penalty == 1 and settings.frequency_penalty == settings.presence_penalty == 0:
            return log_p
        drawn = progress.prefixes[:, 1:]
        counts = torch.zeros_like(log_p, dtype=torch.long).scatter_add_(1, drawn, torch.ones_like(drawn))
        seen = counts > 0 if self._seen is None else (counts > 0) | self._seen
        log_p = penalise_repetition(log_p.double(), seen, settings.repetition_penalty)
        return penalise_counts(log_p, counts, settings.frequency_penalty, settings.presence_penalty)

    def harvest(self, places: list[int], progress: Progress) -> list[list[Hypothesis]]:
        """Return each source's one hypothesis; its log p and score are the model's own, before any rule."""
        by_token = torch.stack(self._token_log_p, 1)[places].tolist()
        rows = zip(progress.prefixes[places, 1:].tolist(), self._log_p[places].tolist(), by_token, strict=True)
        return [[self._hypothesis(*row)] for row in rows]

    def _hypothesis(self, tokens: list[int], log_p: float, by_token: list[float]) -> Hypothesis:
        length = tokens.index(self._strategy.end)
        return Hypothesis(tuple(tokens[:length]), log_p, log_p, tuple(by_token[:length]))

    def keep(self, places: Int[Tensor, "kept"]) -> None:
        """Go on with the sources at these places only."""
        self._noise, self._log_p, self._done = self._noise[places], self._log_p[places], self._done[places]
        self._token_log_p = list(torch.stack(self._token_log_p, 1)[places].unbind(1))
        self._seen = None if self._seen is None else self._seen[places]


def penalise_repetition(
    log_p: Float[Tensor, "rows vocab"], seen: Bool[Tensor, "rows vocab"], penalty: float
) -> Float[Tensor, "rows vocab"]:
    """Multiply log p of tokens that stood before by the penalty.

    p_i ~ exp(x_i / theta) of scores x for seen i (Keskar et al. 2019, section 4.1). We differ: scores are known up to a shift only, on
    which that depends; log p is not, and being negative it is multiplied where a positive score is divided.

    Args:
        log_p: a row need not sum to 1.
        seen: tokens of the prompt and of the text so far.
        penalty: theta; above 1 against repetition, below 1 for it.

    Returns:
        Log weights, not normalised.
    """
    return torch.where(seen, log_p * penalty, log_p)


def penalise_counts(
    log_p: Float[Tensor, "rows vocab"], counts: Int[Tensor, "rows vocab"], frequency: float, presence: float
) -> Float[Tensor, "rows vocab"]:
    """Take from log p what a token's earlier uses cost.

    log p_i - c_i * frequency - [c_i > 0] * presence (the OpenAI API's definition; a shift of the scores does not matter here).

    Args:
        log_p: a row need not sum to 1.
        counts: c, how often each token was drawn; the prompt does not count.
        frequency: cost of each use.
        presence: cost of the first use, on top.

    Returns:
        Log weights, not normalised.
    """
    return log_p - counts.to(log_p.dtype) * frequency - (counts > 0).to(log_p.dtype) * presence


def warp(log_p: Float[Tensor, "rows vocab"], settings: Sampling) -> Float[Tensor, "rows vocab"]:
    """Apply temperature, top-k, top-p, min-p and typical sampling, in this order, which is that of the transformers library.

    Args:
        log_p: a row need not sum to 1.
        settings: the rules; the temperature is above 0.

    Returns:
        The distribution to draw from.
    """
    log_p = with_temperature(log_p, settings.temperature)
    if settings.top_k is not None:
        log_p = keep_top_k(log_p, settings.top_k)
    if settings.top_p is not None:
        log_p = keep_top_p(log_p, settings.top_p)
    if settings.min_p is not None:
        log_p = keep_min_p(log_p, settings.min_p)
    if settings.typical_p is not None:
        log_p = keep_typical(log_p, settings.typical_p)
    return log_p


def with_temperature(log_p: Float[Tensor, "rows vocab"], temperature: float) -> Float[Tensor, "rows vocab"]:
    """Sharpen (T < 1) or flatten (T > 1): p_i ~ p_i^(1/T) (Ackley et al. 1985).

    Args:
        log_p: a row need not sum to 1.
        temperature: T, above 0.

    Returns:
        Each row normalised.
    """
    below_the_best = log_p - log_p.amax(1, keepdim=True)  # no temperature, however low, takes the best to minus infinity
    return (below_the_best / temperature).log_softmax(1)


def keep_top_k(log_p: Float[Tensor, "rows vocab"], k: int) -> Float[Tensor, "rows vocab"]:
    """Keep the k likeliest tokens, and those as likely as the k-th (Fan et al. 2018).

    Args:
        log_p: each row normalised.
        k: at least 1; more than the vocabulary keeps all.

    Returns:
        Each row normalised again.
    """
    kth = top_tokens(log_p, min(k, log_p.shape[1]))[0][:, -1:]
    return _only(log_p, log_p >= kth)


def keep_top_p(log_p: Float[Tensor, "rows vocab"], p: float) -> Float[Tensor, "rows vocab"]:
    """Keep the fewest likeliest tokens of total probability p or more, and those as likely as the last (nucleus; Holtzman et al. 2020).

    Args:
        log_p: each row normalised.
        p: above 0; 1 keeps all.

    Returns:
        Each row normalised again.
    """
    return _only(log_p, _first(-log_p, log_p, p))


def keep_min_p(log_p: Float[Tensor, "rows vocab"], share: float) -> Float[Tensor, "rows vocab"]:
    """Keep the tokens with p_i >= share * max p (Nguyen et al. 2024).

    Args:
        log_p: each row normalised.
        share: from 0, which keeps all, to 1, which keeps the likeliest.

    Returns:
        Each row normalised again.
    """
    return _only(log_p, (log_p - log_p.amax(1, keepdim=True)).exp() >= share)


def keep_typical(log_p: Float[Tensor, "rows vocab"], mass: float) -> Float[Tensor, "rows vocab"]:
    """Keep the fewest tokens of total probability ``mass`` or more whose surprise is nearest the entropy, and those as near as the last.

    The distance is |-log p_i - H|, H = -sum_i p_i log p_i (Meister et al. 2023, locally typical sampling).

    Args:
        log_p: each row normalised.
        mass: above 0; 1 keeps all.

    Returns:
        Each row normalised again.
    """
    entropy = torch.special.entr(log_p.exp()).sum(1, keepdim=True)
    return _only(log_p, _first((-log_p - entropy).abs(), log_p, mass))


def draw(log_p: Float[Tensor, "rows vocab"], noise: Float[Tensor, "rows"]) -> Int[Tensor, "rows"]:
    """Return each row's first token i with p_1 + ... + p_i > noise: the inverse of the cumulative distribution.

    A token of probability 0 is never drawn: it is no candidate, and the largest sum exceeds its product with noise below 1, rounded or
    not.

    Args:
        log_p: in float64, each row normalised.
        noise: uniform in [0, 1).
    """
    p = log_p.exp()
    sums = p.cumsum(1).masked_fill(p == 0, 0.0)
    return (sums > noise[:, None] * sums.amax(1, keepdim=True)).int().argmax(1)


def _only(log_p: Float[Tensor, "rows vocab"], kept: Bool[Tensor, "rows vocab"]) -> Float[Tensor, "rows vocab"]:
    """Forbid all but the kept tokens and normalise."""
    return log_p.masked_fill(~kept, NEVER).log_softmax(1)


def _first(order: Float[Tensor, "rows vocab"], log_p: Float[Tensor, "rows vocab"], mass: float) -> Bool[Tensor, "rows vocab"]:
    """Mark the fewest tokens, smallest order first, of total probability ``mass`` or more, and the last one's equals."""
    if mass == 1:  # not left to rounding
        return torch.ones_like(order, dtype=torch.bool)
    n, vocab = FEW, order.shape[1]
    while True:
        smallest, tokens = top_tokens(-order, min(n, vocab))
        reached = log_p.gather(1, tokens).exp().cumsum(1)
        if n >= vocab or bool((reached[:, -1] >= mass).all()):
            break
        n *= 8
    last = (reached < mass).sum(1, keepdim=True).clamp(max=reached.shape[1] - 1)
    return -order >= smallest.gather(1, last)


def _noise(n: int, seed: int, sample: int) -> NDArray[np.float64]:
    """Draw n numbers from [0, 1), by the bit generator alone, whose stream is the same in every version of numpy."""
    bits = np.random.Philox(np.random.SeedSequence([seed, sample])).random_raw(n)
    return np.asarray((bits >> 11) * 2.0**-53, np.float64)  # 53 bits: none is rounded up to 1
