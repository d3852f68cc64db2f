"""Sampling: temperature, top-k, top-p (nucleus), min-p and typical sampling, with repetition, frequency and presence penalties.

Each rule is a function of log-probabilities, with one row per text. A token at minus infinity stays suppressed, and at least one token
per row is kept. Tokens of equal probability are treated alike, so that no rule depends on the order of the vocabulary or on the batch.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from transom.config.decoding import SamplingConfig
from transom.data.tokenizer.special_tokens import PAD
from transom.decoding.search.interfaces import NEG_INF, Hypothesis, LengthLimits, SearchState, SearchUpdate
from transom.decoding.search.loop import fast_topk, largest

INITIAL_CANDIDATES = 64
"""Number of tokens that are sorted first to find a nucleus (top-p); most nuclei are smaller, and sorting all tokens is slow."""


@dataclass(frozen=True)
class MultinomialSampling:
    """Sample y_t from the reshaped distribution p(y | y_<t, x) until the end token.

    As in the transformers library, ``apply_repetition_penalty`` comes first, then ``apply_count_penalties``, then ``warp_logits``.
    The random number of a token is a pure function of (seed, sample, position), independent of the batch. An interrupted text therefore
    continues identically, except that count penalties restart from zero.

    Args:
        end: the end token.
        settings: the rules and the seed; at temperature 0 the most probable token is taken, after penalties.
        samples: sample ID of each source, at least 0; sources with equal IDs get the same random numbers.
        first: position of the first new token in the whole text.
        padding: token that finished rows emit.
        seen: for the repetition penalty, True at tokens that occur in each source's prompt or in its text before this search.
    """

    end: int
    settings: SamplingConfig
    samples: tuple[int, ...]
    first: int = 0
    seen: Bool[Tensor, "sources vocab"] | None = None
    padding: int = PAD

    @property
    def n_beams(self) -> int:
        """One row per source."""
        return 1

    def begin(self, limits: LengthLimits) -> "SamplingSelector":
        """Start a search."""
        return SamplingSelector(self, limits)


class SamplingSelector:
    """State of sampling: random numbers and log p of each row, and whether the row has ended."""

    def __init__(self, strategy: MultinomialSampling, limits: LengthLimits) -> None:
        """Draw all random numbers, and start all rows with log p = 0."""
        assert len(strategy.samples) == len(limits.max_length)
        device, n = limits.max_length.device, strategy.first + limits.largest_max_length
        noise = np.stack([_uniform_noise(n, strategy.settings.seed, sample) for sample in strategy.samples])
        self._strategy = strategy
        self._noise = torch.from_numpy(noise[:, strategy.first :]).to(device)  # (sources, longest)
        self._seen = strategy.seen
        self._log_p = torch.zeros(len(noise), device=device)
        self._done = torch.zeros_like(limits.max_length, dtype=torch.bool)
        self._token_log_p = list[Tensor]()  # one (rows,) per step

    def advance(self, log_p: Float[Tensor, "rows vocab"], state: SearchState) -> SearchUpdate:
        """Sample one token per row. Finished rows emit padding; a row with no finite logit finishes."""
        settings, end = self._strategy.settings, self._strategy.end
        warped = self._apply_penalties(log_p, state)
        if settings.temperature == 0:
            tokens = largest(warped)[1]
        else:
            warped = warp_logits(warped.double(), settings)
            tokens = sample_inverse_cdf(warped, self._noise[:, state.length])
        is_finite = warped.gather(1, tokens[:, None])[:, 0] > NEG_INF  # also false for NaN
        tokens = tokens.masked_fill(~is_finite, end)
        self._token_log_p.append(log_p.gather(1, tokens[:, None])[:, 0].masked_fill(self._done, 0.0))
        self._log_p = self._log_p + self._token_log_p[-1]
        tokens = tokens.masked_fill(self._done, self._strategy.padding)
        self._done = self._done | (tokens == end)
        return SearchUpdate(tokens, None, self._done)

    def _apply_penalties(self, log_p: Float[Tensor, "rows vocab"], state: SearchState) -> Float[Tensor, "rows vocab"]:
        settings = self._strategy.settings
        if settings.repetition_penalty == 1 and settings.frequency_penalty == settings.presence_penalty == 0:
            return log_p
        sampled = state.tokens_so_far[:, 1:]
        counts = torch.zeros_like(log_p, dtype=torch.long).scatter_add_(1, sampled, torch.ones_like(sampled))
        seen = counts > 0 if self._seen is None else (counts > 0) | self._seen
        log_p = apply_repetition_penalty(log_p.double(), seen, settings.repetition_penalty)
        return apply_count_penalties(log_p, counts, settings.frequency_penalty, settings.presence_penalty)

    def finalize(self, indices: list[int], state: SearchState) -> list[list[Hypothesis]]:
        """Return the single hypothesis of each source; its log p and score are those of the model before reshaping."""
        by_token = torch.stack(self._token_log_p, 1)[indices].tolist()
        rows = zip(state.tokens_so_far[indices, 1:].tolist(), self._log_p[indices].tolist(), by_token, strict=True)
        return [[self._hypothesis(*row)] for row in rows]

    def _hypothesis(self, tokens: list[int], log_p: float, by_token: list[float]) -> Hypothesis:
        length = tokens.index(self._strategy.end)
        return Hypothesis(tuple(tokens[:length]), log_p, log_p, tuple(by_token[:length]))

    def select_sources(self, indices: Int[Tensor, "kept"]) -> None:
        """Drop all sources except those at these indices."""
        self._noise, self._log_p, self._done = self._noise[indices], self._log_p[indices], self._done[indices]
        self._token_log_p = list(torch.stack(self._token_log_p, 1)[indices].unbind(1))
        self._seen = None if self._seen is None else self._seen[indices]


def apply_repetition_penalty(
    log_p: Float[Tensor, "rows vocab"], seen: Bool[Tensor, "rows vocab"], penalty: float
) -> Float[Tensor, "rows vocab"]:
    """Multiply log p of previously seen tokens by the penalty.

    Keskar et al. (2019, section 4.1) divide the logits of seen tokens: p_i ~ exp(x_i / theta). The result then depends on the arbitrary
    shift of the logits x. This implementation uses log p, which has no such shift, and multiplies because log p is negative.

    Args:
        log_p: log-probabilities; rows need not be normalized.
        seen: True at tokens of the prompt and of the text so far.
        penalty: theta; values above 1 discourage repetition, values below 1 encourage it.

    Returns:
        Unnormalized log weights.
    """
    return torch.where(seen, log_p * penalty, log_p)


def apply_count_penalties(
    log_p: Float[Tensor, "rows vocab"], counts: Int[Tensor, "rows vocab"], frequency: float, presence: float
) -> Float[Tensor, "rows vocab"]:
    """Subtract frequency and presence penalties from log p.

    log p_i - c_i * frequency - [c_i > 0] * presence, as defined by the OpenAI API; the result does not depend on a shift of the logits.

    Args:
        log_p: rows need not be normalized.
        counts: c, the number of times each token was sampled; tokens of the prompt are not included.
        frequency: penalty per occurrence.
        presence: additional penalty for the first occurrence.

    Returns:
        Unnormalized log weights.
    """
    return log_p - counts.to(log_p.dtype) * frequency - (counts > 0).to(log_p.dtype) * presence


def warp_logits(log_p: Float[Tensor, "rows vocab"], settings: SamplingConfig) -> Float[Tensor, "rows vocab"]:
    """Apply temperature, top-k, top-p, min-p and typical sampling in this order, the order of the transformers library.

    Args:
        log_p: rows need not be normalized.
        settings: the rules; the temperature is above 0.

    Returns:
        Log-probabilities of the distribution to sample from.
    """
    log_p = apply_temperature(log_p, settings.temperature)
    if settings.top_k is not None:
        log_p = keep_top_k(log_p, settings.top_k)
    if settings.top_p is not None:
        log_p = keep_top_p(log_p, settings.top_p)
    if settings.min_p is not None:
        log_p = keep_min_p(log_p, settings.min_p)
    if settings.typical_p is not None:
        log_p = keep_typical(log_p, settings.typical_p)
    return log_p


def apply_temperature(log_p: Float[Tensor, "rows vocab"], temperature: float) -> Float[Tensor, "rows vocab"]:
    """Sharpen (T < 1) or flatten (T > 1): p_i ~ p_i^(1/T) (Ackley et al. 1985).

    Args:
        log_p: rows need not be normalized.
        temperature: T, above 0.

    Returns:
        Normalized log-probabilities.
    """
    shifted = log_p - log_p.amax(1, keepdim=True)  # so that even a very low temperature keeps the maximum finite
    return (shifted / temperature).log_softmax(1)


def keep_top_k(log_p: Float[Tensor, "rows vocab"], k: int) -> Float[Tensor, "rows vocab"]:
    """Keep the k most probable tokens, and all tokens as probable as the k-th (top-k; Fan et al. 2018).

    Args:
        log_p: normalized log-probabilities.
        k: at least 1; a value above the vocabulary size keeps all tokens.

    Returns:
        Renormalized log-probabilities.
    """
    kth = fast_topk(log_p, min(k, log_p.shape[1]))[0][:, -1:]
    return _mask_and_renormalize(log_p, log_p >= kth)


def keep_top_p(log_p: Float[Tensor, "rows vocab"], p: float) -> Float[Tensor, "rows vocab"]:
    """Keep the fewest most probable tokens whose total probability is at least p, and ties (nucleus; Holtzman et al. 2020).

    Args:
        log_p: normalized log-probabilities.
        p: above 0; 1 keeps all tokens.

    Returns:
        Renormalized log-probabilities.
    """
    return _mask_and_renormalize(log_p, _smallest_set(-log_p, log_p, p))


def keep_min_p(log_p: Float[Tensor, "rows vocab"], fraction: float) -> Float[Tensor, "rows vocab"]:
    """Keep the tokens with p_i >= ``fraction`` * max p (min-p; Nguyen et al. 2024).

    Args:
        log_p: normalized log-probabilities.
        fraction: from 0, which keeps all tokens, to 1, which keeps the most probable one.

    Returns:
        Renormalized log-probabilities.
    """
    return _mask_and_renormalize(log_p, (log_p - log_p.amax(1, keepdim=True)).exp() >= fraction)


def keep_typical(log_p: Float[Tensor, "rows vocab"], mass: float) -> Float[Tensor, "rows vocab"]:
    """Keep the fewest tokens of surprisal closest to the entropy whose total probability is at least ``mass``, and ties.

    The distance is |-log p_i - H|, H = -sum_i p_i log p_i (locally typical sampling; Meister et al. 2023).

    Args:
        log_p: normalized log-probabilities.
        mass: above 0; 1 keeps all tokens.

    Returns:
        Renormalized log-probabilities.
    """
    entropy = torch.special.entr(log_p.exp()).sum(1, keepdim=True)
    return _mask_and_renormalize(log_p, _smallest_set((-log_p - entropy).abs(), log_p, mass))


def sample_inverse_cdf(log_p: Float[Tensor, "rows vocab"], noise: Float[Tensor, "rows"]) -> Int[Tensor, "rows"]:
    """Sample by inversion of the cumulative distribution: return the first token i of each row with p_1 + ... + p_i > noise.

    A token of probability 0 is never sampled: its cumulative sum is masked. Some token is always found: the total probability exceeds its
    product with a noise below 1, also after rounding.

    Args:
        log_p: normalized log-probabilities in float64.
        noise: uniform random numbers in [0, 1).
    """
    p = log_p.exp()
    sums = p.cumsum(1).masked_fill(p == 0, 0.0)
    return (sums > noise[:, None] * sums.amax(1, keepdim=True)).int().argmax(1)


def _mask_and_renormalize(log_p: Float[Tensor, "rows vocab"], kept_tokens: Bool[Tensor, "rows vocab"]) -> Float[Tensor, "rows vocab"]:
    """Suppress all tokens that are not kept, and renormalize."""
    return log_p.masked_fill(~kept_tokens, NEG_INF).log_softmax(1)


def _smallest_set(order: Float[Tensor, "rows vocab"], log_p: Float[Tensor, "rows vocab"], mass: float) -> Bool[Tensor, "rows vocab"]:
    """Return a mask of the smallest set of tokens, by increasing ``order``, with total probability at least ``mass``, and ties."""
    if mass == 1:  # exact, whatever the rounding
        return torch.ones_like(order, dtype=torch.bool)
    n, vocab = INITIAL_CANDIDATES, order.shape[1]
    while True:
        smallest, tokens = fast_topk(-order, min(n, vocab))
        reached = log_p.gather(1, tokens).exp().cumsum(1)
        if n >= vocab or bool((reached[:, -1] >= mass).all()):
            break
        n *= 8
    last = (reached < mass).sum(1, keepdim=True).clamp(max=reached.shape[1] - 1)
    return -order >= smallest.gather(1, last)


def _uniform_noise(n: int, seed: int, sample: int) -> NDArray[np.float64]:
    """Draw n uniform numbers in [0, 1) from the raw bits of Philox, which are the same in every version of NumPy."""
    bits = np.random.Philox(np.random.SeedSequence([seed, sample])).random_raw(n)
    return np.asarray((bits >> 11) * 2.0**-53, np.float64)  # 53 bits, so that none is rounded up to 1
