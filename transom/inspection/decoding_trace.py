"""Trace what a search found: a pass over the whole text, certified against the log-probabilities that the decoder computed step by step."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from transom.data.batch import LanguageBatch, PaddedSequences
from transom.decoding.search.step_trace import RecordedSearch
from transom.errors import ConfigError
from transom.inspection.certify import CertificationError
from transom.inspection.trace import Trace, trace
from transom.models.base import LanguageModel

ROUNDINGS = {torch.float32: 32, torch.bfloat16: 3}
"""Rounding errors of the largest logit by which log-probabilities may differ, per dtype of the weights.

On trained translators the difference is 4 of them in float32 and 0.8 in bfloat16.
"""


class DecodingCertificate(NamedTuple):
    """Result of comparing a pass over a whole text with the steps of the decoder that found it.

    Attributes:
        n_steps: number of steps.
        difference: largest difference of a log-probability of a token that the search did not suppress, in nats.
        bound: largest difference that rounding explains; None in int8, where the difference is reported only.
        step: step of the largest difference, from 1.
    """

    n_steps: int
    difference: float
    bound: float | None
    step: int

    @property
    def ok(self) -> bool:
        """Whether rounding explains the difference."""
        return self.bound is None or self.difference <= self.bound

    def check(self) -> None:
        """Raise if rounding does not explain the difference.

        Raises:
            CertificationError: the pass and the decoder computed different probabilities.
        """
        if not self.ok:
            raise CertificationError(
                f"expected the log-probabilities of the decoder, found a difference of {self.difference:.3g} in step {self.step}, of which"
                f" rounding explains {self.bound:.3g}; the decoder and the traced pass do not compute the same"
            )


class SearchTrace(NamedTuple):
    """A search and the trace of what it found.

    Attributes:
        search: the search with its steps.
        trace: quantities of the pass over the whole text.
        certificate: comparison of the pass with the decoder.
    """

    search: RecordedSearch
    trace: Trace
    certificate: DecodingCertificate


def trace_search(
    predictor: Any, text: str, names: Sequence[str] | None = None, *, trace_options: Any = None, **options: Any
) -> SearchTrace:
    """Search with the decoder of a run, then trace a pass over what was found.

    The decoder, perhaps compiled, keeps no activations. The pass reads the whole text at once, and its log-probabilities are compared with
    those of the decoder in every step.

    Args:
        predictor: a translator or language model loaded by ``transom.load``.
        text: source text or prompt.
        names: names of quantities, as for ``trace``.
        trace_options: further arguments of ``trace``, by name.
        **options: options of the search, as for ``translate`` or ``generate``.

    Raises:
        ConfigError: the predictor does not search, or the text exceeds the context window.
    """
    if not hasattr(predictor, "record_search"):
        raise ConfigError(f"expected a translator or language model, found a {type(predictor).__name__}; use transom.trace")
    found: RecordedSearch = predictor.record_search(text, **options)
    model, is_language_model = predictor.model, isinstance(predictor.model, LanguageModel)
    length, most = len(found.tokens) + (len(found.source) if is_language_model else 1), model.config.max_seq_len
    if length > most:
        raise ConfigError(f"expected at most {most} tokens, the context window, found {length}; lower max_new_tokens or shorten the text")
    if is_language_model:
        read = replace(PaddedSequences.pad([[*found.source, *found.tokens]]), text_length=found.text_length)
        batch: Any = LanguageBatch(read, read.tokens, (0,))
    else:  # the batch adds the special tokens
        template = predictor.tokenizers.source.special_tokens.seq2seq
        source = found.source[len(template.prefix) : len(found.source) - len(template.suffix)]
        batch = predictor.build_batch(source, found.tokens)
    logits, traced = trace(predictor, batch.to(model.device), names, **(trace_options or {}))
    first = len(found.source) - 1 if is_language_model else 0
    return SearchTrace(found, traced, compare_steps(found, logits[0, first:]))


def compare_steps(found: RecordedSearch, logits: Float[Tensor, "positions vocab"]) -> DecodingCertificate:
    """Compare the log-probabilities of each step of a search with those of a pass over what was found.

    Args:
        found: the search.
        logits: logits of the pass; those in row t follow the first t tokens that were found.
    """
    worst, at, n_steps = 0.0, 1, 0
    own = logits.float().log_softmax(-1).cpu()
    for t, step in enumerate(found.steps[: len(found.tokens) + 1]):  # a beam search may continue
        row = next(i for i, each in enumerate(step.hypotheses) if each.tokens == found.tokens[:t])
        theirs, n_steps = step.log_probs[row].cpu(), t + 1
        difference = float((theirs - own[t])[theirs.isfinite()].abs().max())
        if not difference <= worst:
            worst, at = difference, t + 1
    rounding = ROUNDINGS[logits.dtype] * torch.finfo(logits.dtype).eps * max(1.0, float(logits.abs().max()))
    return DecodingCertificate(n_steps, worst, None if found.decoder == "int8" else rounding, at)
