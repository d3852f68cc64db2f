"""Log-likelihood of texts, and of parts of texts such as paragraphs, under a language model."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from transom.data.text.windows import scoring_batches
from transom.data.tokenizer.tokenizer import Tokenizer
from transom.decoding.inference import ProgressCallback, eval_mode, ignore_progress, reject_single_item
from transom.decoding.predictors.likelihood import TextScore
from transom.decoding.predictors.long_texts import check_long_text_policy
from transom.decoding.search.loop import token_log_probs
from transom.errors import ConfigError, DataError
from transom.models.base import LanguageModel

ScorePolicy = Literal["window", "truncate", "refuse"]


@dataclass
class _ScoredTokens:
    """Log-probability of the tokens of a text.

    Attributes:
        tokens: token ids of the text.
        log_p: log p of each scored token: those of ``tokens`` and then the end token, or the first of them if the text was truncated.
        windows: number of windows in which the text was read.
    """

    tokens: list[int]
    log_p: NDArray[np.float64]
    windows: int = 0


def score_texts(
    model: LanguageModel,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    overlap: int = 0,
    batch_tokens: int = 4096,
    name: str = "text",
    too_long: ScorePolicy = "window",
    notify: ProgressCallback = ignore_progress,
) -> list[TextScore]:
    """Compute log p of each text; see ``Generator.score``."""
    scores = []
    for text, each in zip(texts, _score_tokens(model, tokenizer, texts, overlap, batch_tokens, name, too_long, notify), strict=True):
        n, whole = len(each.log_p), len(each.tokens)
        seen = tokenizer.decode(each.tokens[:n]) if n <= whole else text
        n_unknown = _count_unknown(tokenizer, each.tokens)
        scores.append(TextScore(float(each.log_p.sum()), n, len(seen.encode()), each.windows, whole + 1 - n, n_unknown))
    return scores


def score_parts(
    model: LanguageModel,
    tokenizer: Tokenizer,
    texts: Sequence[Sequence[str]],
    overlap: int = 0,
    batch_tokens: int = 4096,
    name: str = "text",
    too_long: Literal["window", "refuse"] = "window",
    notify: ProgressCallback = ignore_progress,
) -> list[list[TextScore]]:
    """Compute log p of each part of texts, such as a paragraph, given the previous parts of its text.

    The scores of the parts of a text sum to the score of the text: a token contributes to the part in which it starts, and the end token to
    the last part. ``windows`` of each part is the number of windows of the whole text.

    Args:
        model: a language model.
        tokenizer: the tokenizer of the model.
        texts: the consecutive parts of each text, at least one. No word may span two parts.
        overlap: number of tokens of the previous window that every further window of a long text repeats as context.
        batch_tokens: maximum tokens per batch, padding included.
        name: origin of the texts, for messages.
        too_long: treatment of texts longer than the context window, "window" or "refuse".
        notify: progress callback, called with the number of tokens done and of all tokens.

    Raises:
        ConfigError: the overlap is not smaller than the context window, or is not 0 although ``too_long`` is not "window".
        DataError: a text is too long and ``too_long`` is "refuse".
    """
    wholes = ["".join(parts) for parts in texts]
    scores = list[list[TextScore]]()
    for parts, each in zip(texts, _score_tokens(model, tokenizer, wholes, overlap, batch_tokens, name, too_long, notify), strict=True):
        counts = tokenizer.count_part_tokens(parts, each.tokens)
        ends = np.cumsum(counts)[:-1]
        counts[-1] += 1  # the end token
        totals = [float(log_p.sum()) for log_p in np.split(each.log_p, ends)]
        unknown = [_count_unknown(tokenizer, each.tokens[start:end]) for start, end in pairwise([0, *ends.tolist(), None])]
        rows = zip(totals, counts, parts, unknown, strict=True)
        scores.append([TextScore(total, n, len(part.encode()), each.windows, 0, n_unknown) for total, n, part, n_unknown in rows])
    return scores


@torch.inference_mode()
def _score_tokens(
    model: LanguageModel,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    overlap: int,
    batch_tokens: int,
    name: str,
    too_long: ScorePolicy,
    notify: ProgressCallback,
) -> list[_ScoredTokens]:
    """Compute log p of each token of texts."""
    reject_single_item(texts, "text")
    check_long_text_policy(too_long, "window", "truncate", "refuse")
    max_tokens, special = model.config.max_seq_len, tokenizer.special_tokens
    if not 0 <= overlap < max_tokens:
        raise ConfigError(f"expected an overlap from 0 to {max_tokens - 1}, below model.max_seq_len, found {overlap}")
    if overlap and too_long != "window":
        raise ConfigError(f"expected an overlap with too_long = 'window', found {overlap} with {too_long!r}; omit overlap or too_long")
    rows = tokenizer.encode_batch(list(texts))
    long_rows = [number for number, row in enumerate(rows) if len(row) >= max_tokens]
    if long_rows and too_long == "refuse":
        raise DataError(
            f"{name}: expected at most {max_tokens - 1} tokens per text, found {len(rows[long_rows[0]])} in text {long_rows[0] + 1};"
            " shorten the text, or set too_long to 'window'"
        )
    whole, cut = [[special.document_start, *row] for row in rows], too_long == "truncate"
    scored = [_ScoredTokens(row, np.zeros(min(len(row) + 1, max_tokens) if cut else len(row) + 1)) for row in rows]
    n_scored, n_all = 0, sum(len(each.log_p) for each in scored)
    with eval_mode(model):
        for batch, owners, is_new in scoring_batches(whole, max_tokens, overlap, batch_tokens, first_only=cut, special=special):
            log_p = token_log_probs(model, batch.to(model.device)).cpu()
            for owner, start, of_row, new in zip(owners, batch.sample_ids, log_p, is_new, strict=True):
                scored[owner].log_p[start + new.nonzero()[:, 0].numpy()] = of_row[new].numpy()
                scored[owner].windows += 1
            n_scored += int(is_new.sum())
            notify(n_scored, n_all)
    return scored


def _count_unknown(tokenizer: Tokenizer, tokens: Sequence[int]) -> int:
    return sum(token == tokenizer.special_tokens.unk_token_id for token in tokens)
