"""The hand calculation of one element of a named quantity."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from transom.config.architecture import TransformerConfig
from transom.errors import ConfigError
from transom.files.message import phrase
from transom.inspection.activations import Activations, find_network
from transom.inspection.explain.explain import explain
from transom.inspection.explain.explanation import Explanation
from transom.inspection.explain.steps import Calculation, Values
from transom.inspection.trace import Trace, names_of
from transom.layers.block import PostNormBlock

SIDES = {"source_embedding": "encoder", "target_embedding": "decoder"}
"""Stack that reads an embedding, in models with two."""

_WIDE = ("d_head", "d_value", "d_model", "d_ff", "width", "patch_width")
"""Axes of vectors, of which a hand calculation works out one element."""


class CellCalculation(NamedTuple):
    """The hand calculation of one element.

    Attributes:
        value: the element in the pass.
        explanation: the calculation of the token, block and head to which the element belongs.
        steps: section and number of each step that gives the element; empty if it is not a step of its own.
        options: the arguments of ``explain`` that give this calculation.
    """

    value: float
    explanation: Explanation
    steps: Sequence[tuple[int, int]]
    options: Mapping[str, Any]


def explain_cell(run: Any, batch: Any, trace: Trace, name: str, index: Mapping[str, int], temperature: float = 1.0) -> CellCalculation:
    """Write out by hand how a model computed one element of a quantity.

    Args:
        run: a run loaded by ``transom.load``, or a model.
        batch: batch of one row.
        trace: trace of the same pass, with all sites.
        name: address of the quantity.
        index: index of the element by name of the axis, such as ``{"n_heads": 2, "query": 5, "key": 3}``, without the batch.
        temperature: divisor of the logits before probabilities.

    Raises:
        ConfigError: there is no such quantity or element.
    """
    _, network = find_network(run, batch)
    known = {each.address: each for each in names_of(network.config)}
    if name not in known:
        raise ConfigError(f"name: expected the address of a quantity, found {name!r:.80}; transom names RUN lists them")
    a = trace.activations
    x = trace[name] if temperature == a.temperature else Activations(a.model, a.batch, a.recorded, temperature)[name]
    axes = trace.axes(name, x.ndim)
    value = x[element_index(axes, x.shape, index)].double().item()
    options = _options(network, name, dict(zip(axes, x.shape, strict=True)), index) | {"temperatures": (temperature,), "every": True}
    explanation = explain(run, batch, **options)
    return CellCalculation(value, explanation, _steps(explanation, name, value, index), options)


def axis_message(axis: str, size: int, found: int) -> str:
    """Return the message about an index that is out of range."""
    return phrase("errors.axis", "index: expected {axis} from 0 to {last}, found {found}", axis=axis, last=str(size - 1), found=str(found))


def element_index(axes: Sequence[str], shape: Sequence[int], index: Mapping[str, int]) -> tuple[int, ...]:
    """Return the index of an element of a tensor of one row.

    Raises:
        ConfigError: an axis is missing or unknown, or an index is out of range.
    """
    own = [axis for axis in axes if axis != "batch"]
    if set(index) != set(own):
        raise ConfigError(f"index: expected one index for each of {', '.join(own) or 'no axis'}, found {', '.join(index) or 'none'}")
    for axis, size in zip(axes, shape, strict=True):
        if axis != "batch" and not 0 <= index[axis] < size:
            raise ConfigError(axis_message(axis, size, index[axis]))
    return tuple(0 if axis == "batch" else index[axis] for axis in axes)


def _options(network: Any, name: str, sizes: Mapping[str, int], index: Mapping[str, int]) -> dict[str, Any]:
    """Return the arguments of ``explain`` for an element: stack, block, head, query, key, element and candidate."""
    options, first = dict[str, Any](), name.partition(".")[0]
    stacks = [each for each in ("encoder", "decoder") if hasattr(network, each)]
    stack = SIDES.get(first, first if first in stacks else stacks[-1] if stacks else None)
    config = network.config
    n_heads = config.of_stack(stack or "").n_heads if isinstance(config, TransformerConfig) else 1
    if len(stacks) > 1:
        options["stack"] = stack
    if stack is not None and (block := _block(network, name, stack)) is not None:
        options["block"] = block
    if "n_heads" in index:
        options["head"] = index["n_heads"]
    elif "kv_heads" in index:
        options["head"] = index["kv_heads"] * (n_heads // sizes["kv_heads"])
    if "key" in index:
        options["key"] = index["key"]
    if "query" in index:
        options["query"] = index["query"]
    elif "patches" in index:
        options["query"] = network.config.n_positions - network.config.grid**2 + index["patches"]
    elif "key" in index and ".cross." not in name:
        options["query"] = index["key"]
    if wide := [axis for axis in index if axis in _WIDE]:
        options["dim"] = index[wide[0]]
    if name.endswith(".concat"):
        options["head"], options["dim"] = divmod(index["width"], sizes["width"] // n_heads)
    if "vocab" in index:
        options["candidate"] = index["vocab"]
    return options


def _block(network: Any, name: str, stack: str) -> int | None:
    """Return the block that computes a quantity: for the input of a block the one before it, for those after all blocks the last."""
    found = re.search(r"\.(?:blocks|layers)\.(\d+)\.(.*)", name)
    if found is None:
        after = name.partition(".")[0] not in (*SIDES, "embedding")
        return len(blocks) - 1 if after and (blocks := getattr(getattr(network, stack), "blocks", ())) else None
    block = int(found[1])
    module = network.get_submodule(f"{stack}.blocks.{block}") if ".blocks." in name else None
    norms = ("attn", "cross", "ff") if getattr(module, "parallel", False) else () if isinstance(module, PostNormBlock) else ("attn",)
    first = found[2] in ("resid_pre", *(f"{part}_residual.norm.x" for part in norms))
    return block - 1 if first and block and getattr(module, "depth", None) is None else block


def _steps(explanation: Explanation, name: str, value: float, index: Mapping[str, int]) -> list[tuple[int, int]]:
    """Return the steps whose number in the model is the element, and whose label holds its indices; else the vectors that hold it."""
    pattern = _label(name, index)
    found = [
        (number, i)
        for number, section in enumerate(explanation.sections)
        for i, step in enumerate(section.steps)
        if isinstance(step, Calculation)
        and _equal(step.value if step.traced is None else step.traced, value)
        and re.search(pattern, step.label)
    ]
    if not found and (wide := [index[axis] for axis in _WIDE if axis in index]):
        found = [
            (number, i)
            for number, section in enumerate(explanation.sections)
            for i, step in enumerate(section.steps)
            if isinstance(step, Values) and wide[0] < len(step.values) and step.values[wide[0]] == value
        ]
    part = next((title for word, title in _TITLES.items() if f".{word}." in name), "")
    return [each for each in found if part in explanation.sections[each[0]].title.lower()] or found


def _label(name: str, index: Mapping[str, int]) -> str:
    """Return a pattern of the labels of the steps that give an element of a quantity."""
    last = name.rpartition(".")[2]
    if "query" in index and "key" in index:
        i, j = index["query"], index["key"]
        patterns = {"dot_products": rf"^q_{i} \. k_{j}$", "weights": rf"^(A_{i},{j}(?!\d)|exp\(S_{i},{j}\))"}  # e^S is 0 for a masked key
        return patterns.get(last, rf"^S_{i},{j}(?!\d)")
    labels = {"mean": "^mean$", "variance": "^variance$", "mean_square": "^mean square$", "scale": "^scale$", "logsumexp": "^logsumexp$"}
    outputs = {"logits": r"^z\(", "probs": r"^p\(", "log_probs": r"^ln p\("}
    return (labels | outputs).get(last, r"\[\d+\]$|\[\d+\] \(|^r_\d+|^[zp]_")


_TITLES = {"attn": "attention, head", "cross": "cross-attention", "ff": "feed-forward"}
"""Words in the titles of the sections of a part of a block."""


def _equal(a: float, b: float) -> bool:
    """Return whether two numbers of a pass are equal, within the rounding of sums in another order."""
    return a == b or (math.isfinite(a - b) and abs(a - b) <= 2e-6 * max(abs(a), abs(b), 1e-3))
