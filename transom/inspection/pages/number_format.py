"""Number formatting, and ticks of chart axes."""

import math
from collections.abc import Sequence


def format_compact(value: float) -> str:
    """Format a number in about five characters.

    >>> [format_compact(v) for v in (0, 7, 12345, 2_900_000, 0.0003, 2.4179)]
    ['0', '7', '12.3k', '2.9M', '3e-4', '2.42']
    """
    size = abs(value)
    if not math.isfinite(value):
        return str(value)
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= limit:
            return f"{value / (1e3 if letter == 'k' else limit):.3g}{letter}"
    if size and size < 1e-3:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa.removesuffix('.0')}e{int(exponent)}"
    return f"{value:.0f}" if size >= 1000 else f"{value:.3g}"


def tick_labels(ticks: Sequence[float]) -> list[str]:
    """Format the ticks of an axis with the fewest digits that distinguish them.

    >>> tick_labels([38.96, 38.98, 39.0]), tick_labels([0.0, 0.0005, 0.001])
    (['38.96', '38.98', '39.00'], ['0', '0.0005', '0.0010'])
    """
    labels, digits = [format_compact(tick) for tick in ticks], 1
    mixed = len({"e" in label for label in labels if label != "0"}) > 1
    while (mixed or len(set(labels)) < len(ticks)) and digits < 9:
        labels, digits = [f"{tick:.{digits}f}" for tick in ticks], digits + 1
        mixed = mixed and any(not math.isclose(float(label), tick, rel_tol=1e-6) for label, tick in zip(labels, ticks, strict=True))
    return ["0" if tick == 0 else label for label, tick in zip(labels, ticks, strict=True)]


def format_count(value: float) -> str:
    """Format a count with thousands separators.

    >>> format_count(29000)
    '29,000'
    """
    return f"{value:,.0f}"


def format_parameter_count(n: int, n_active: int) -> str:
    """Format a parameter count, with the parameters active per token if they are fewer.

    >>> format_parameter_count(1000, 1000), format_parameter_count(1000, 300)
    ('1,000 parameters', '1,000 parameters, 300 active per token')
    """
    return f"{format_count(n)} parameters" + (f", {format_count(n_active)} active per token" if n_active != n else "")


def format_percent(fraction: float, digits: int = 0) -> str:
    """Format a fraction as a percentage.

    >>> format_percent(0.634)
    '63%'
    """
    return f"{100 * fraction:.{digits}f}%"


def format_weight(weight: float) -> str:
    """Format an attention weight with four significant digits, as the page of ``transom explore`` does.

    >>> [format_weight(w) for w in (0.25, 0.123456, 0.00001234567, 0)]
    ['0.25', '0.1235', '1.235e-05', '0']
    """
    return f"{weight:.4g}"


def format_duration(seconds: float) -> str:
    """Format a duration in its two largest units.

    >>> [format_duration(s) for s in (0.42, 12, 95, 3600, 7322)]
    ['0.4 s', '12 s', '1 min 35 s', '1 h 0 min', '2 h 2 min']
    """
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, left = divmod(minutes, 60)
    if hours:
        return f"{hours} h {left} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def linear_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Return round ticks that cover ``low`` to ``high``, the first at or below ``low``, the last at or above ``high``.

    >>> linear_ticks(0, 930)
    [0.0, 200.0, 400.0, 600.0, 800.0, 1000.0]
    """
    span = (high - low) or abs(high) or 1.0
    raw = span / about
    unit = 10.0 ** math.floor(math.log10(raw))
    step = unit * min((factor for factor in (1, 2, 5, 10) if factor * unit >= 0.999 * raw), default=10)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(index * step, 12 - math.floor(math.log10(step))) for index in range(first, max(last, first + 1) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return logarithmic ticks that cover ``low`` to ``high``, both positive.

    The ticks are the powers of ten and, if the axis has few decades, their multiples by 3, or by 2 and 5.
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1,) if last - first > 3 else (1, 3) if last - first > 1 else (1, 2, 5)
    ticks = [factor * 10.0**power for power in range(first, last + 1) for factor in factors]
    below = max((tick for tick in ticks if tick <= low), default=ticks[0])
    above = min((tick for tick in ticks if tick >= high), default=ticks[-1])
    return [tick for tick in ticks if below <= tick <= above]
