"""The steps of a softmax: exponentials, their sum, and the quotients."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from transom.inspection.explain.builder import Builder
from transom.inspection.explain.expressions import Expression, Number, Sum, exact, exp, ln
from transom.inspection.messages.tables import message

MAX_EXPONENT = 100.0
"""With a larger exponent in absolute value, the largest score is subtracted first."""


class SoftmaxLabels(NamedTuple):
    """Labels and equations of a softmax.

    Attributes:
        exponential: label of an exponential by the index of its score.
        weight: label of a result by the index of its score.
        symbol: symbol of a score.
        total: what the sum is.
        result: equation of a result.
    """

    exponential: Callable[[int], str]
    weight: Callable[[int], str]
    symbol: str
    total: str
    result: str


def softmax_steps(
    b: Builder,
    scores: Mapping[int, Number],
    shown: Sequence[int],
    labels: SoftmaxLabels,
    traced: Tensor,
    temperature: float | None = None,
    sink: Number | None = None,
    logsumexp: Tensor | None = None,
) -> dict[int, Number]:
    """Add the exponentials of the scores that are shown, the sum of all, and the quotients; return all quotients.

    Args:
        b: the hand calculation.
        scores: scores by index, at least one of them finite; minus infinity where masked.
        shown: indices of the scores that are worked out.
        labels: labels and equations.
        traced: the result of the softmax in the model, by index.
        temperature: divisor of the scores; None for none.
        sink: score that joins the sum and has no result.
        logsumexp: logarithm of the sum of the exponentials in the model, which is worked out; None to leave it out.
    """
    finite = [j for j in (*shown, *(j for j in scores if j not in shown)) if scores[j].number > -math.inf]
    largest = max((scores[j] for j in finite), key=lambda score: score.number)
    shift = max(abs(scores[j].number) for j in finite) > MAX_EXPONENT * (temperature or 1.0)

    tau = None if temperature is None else exact(temperature)

    def power(score: Number) -> Expression:
        inner: Expression = score - largest if shift else score
        return exp(inner if tau is None else inner / tau)

    exponent = f"({labels.symbol} - max {labels.symbol})" if shift else labels.symbol
    exponent = exponent if temperature is None else f"({exponent} / tau)"
    if shift:
        b.note(message("explain.softmax.largest", score=f"{largest.number:.6g}"))
    terms = {j: power(score) for j, score in scores.items()}
    powers = {j: Number(term.value(), term.error()) for j, term in terms.items()}
    for j in shown:
        powers[j] = b.calculate(labels.exponential(j), message("explain.softmax.exponentials", exponent=exponent), terms[j])
    total: list[Expression] = [powers[j] for j in finite]
    if sink is not None:
        total.append(b.calculate("exp(sink)", message("explain.softmax.sink"), power(sink)))
    divisor = b.calculate(message("explain.labels.sum"), labels.total, Sum(total))
    if logsumexp is not None:
        shifted = largest if tau is None else largest / tau
        lse: Expression = ln(divisor) + shifted if shift else ln(divisor)
        added = f" + max {labels.symbol}{'' if tau is None else ' / tau'}" if shift else ""
        b.calculate("logsumexp", message("explain.softmax.logsumexp", added=added), lse, logsumexp)
    results = traced.double().tolist()
    weights = {j: Number(results[j], (powers[j] / divisor).error()) for j in scores}
    for j in shown:
        if j in finite:
            weights[j] = b.calculate(labels.weight(j), labels.result, powers[j] / divisor, traced[j])
    return weights
