"""The steps of a normalization layer."""

from transom.files.message import joined
from transom.inspection.explain.builder import Builder, number, numbers
from transom.inspection.explain.expressions import Expression, Power, Sum, exact, sqrt, tanh
from transom.inspection.messages.tables import message
from transom.layers.norm import BatchNorm, DynamicTanh, LayerNorm, Norm, RmsNorm

Index = tuple[int, ...]
"""Index of a vector: row and position, in an attention layer also the head."""


def norm_steps(b: Builder, path: str, index: Index, name: str) -> None:
    """Add the steps of one vector: statistics, one normalized element, and its output.

    Args:
        b: the hand calculation.
        path: path of the norm.
        index: the vector in the input of the norm.
        name: name of the output, such as ``h_3``.
    """
    a, module = b.a, b.a.module(path)
    x, out = a[f"{path}.x"][index], a[f"{path}.out"][index]
    d = b.at(len(x))
    label = joined("", [name, f"[{d}]"])
    b.after_edits(f"x[{d}]", f"{path}.x", (*index, d))
    if type(module) is Norm:
        b.note(message("explain.norm.none"))
        return
    b.values("x", message("explain.norm.input"), x)
    if isinstance(module, DynamicTanh):
        hidden = b.calculate("tanh", "tanh(alpha x)", tanh(number(module.alpha) * number(x[d])), a[f"{path}.normalized"][index][d])
        b.calculate(label, "gamma tanh(alpha x) + beta", number(module.weight[d]) * hidden + number(module.bias[d]), out[d])
    elif isinstance(module, LayerNorm | RmsNorm | BatchNorm):
        normalized = _normalized(b, path, index, d)
        product: Expression = number(module.weight[d]) * normalized
        if isinstance(module, RmsNorm) or module.bias is None:
            b.calculate(label, "gamma x_hat", product, out[d])
        else:
            b.calculate(label, "gamma x_hat + beta", product + number(module.bias[d]), out[d])
    else:
        b.note(message("explain.norm.unknown", name=type(module).__name__))
    b.values(name, message("explain.norm.output"), out)


def _normalized(b: Builder, path: str, index: Index, d: int) -> Expression:
    """Add the steps of the statistics and of element ``d`` of the normalized vector; return this element."""
    a, module, x = b.a, b.a.module(path), numbers(b.a[f"{path}.x"][index])
    n, eps, normalized = exact(len(x)), exact(module.eps), a[f"{path}.normalized"][index][d]
    if isinstance(module, RmsNorm):
        squares = Sum([Power(each, 2) for each in x])
        mean_square = b.calculate(message("explain.labels.mean_square"), "sum_i x_i^2 / d", squares / n, a[f"{path}.mean_square"][index])
        if b.every:
            b.calculate(message("explain.labels.scale"), message("explain.norm.scale"), sqrt(mean_square + eps), a[f"{path}.scale"][index])
        return b.calculate(f"x_hat[{d}]", message("explain.norm.rms"), x[d] / sqrt(mean_square + eps), normalized)
    if isinstance(module, BatchNorm):
        b.note(message("explain.norm.batch"))
        mean, variance = number(module.mean[d]), number(module.variance[d])
    else:
        mean = b.calculate(message("explain.labels.mean"), "mu = sum_i x_i / d", Sum(x) / n, a[f"{path}.mean"][index])
        squares = Sum([Power(each - mean, 2) for each in x])
        variance = b.calculate(
            message("explain.labels.variance"), "sigma^2 = sum_i (x_i - mu)^2 / d", squares / n, a[f"{path}.variance"][index]
        )
    if b.every and not isinstance(module, BatchNorm):
        b.calculate(message("explain.labels.scale"), "sqrt(sigma^2 + eps)", sqrt(variance + eps), a[f"{path}.scale"][index])
    return b.calculate(f"x_hat[{d}]", "(x - mu) / sqrt(sigma^2 + eps)", (x[d] - mean) / sqrt(variance + eps), normalized)
