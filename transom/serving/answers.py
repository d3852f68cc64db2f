"""Answers to the questions of the page about a pass, as JSON-serializable data."""

import base64
import shlex
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from transom.errors import ConfigError
from transom.files.message import phrase
from transom.inspection.derive_attention import SLICED_MAPS, is_exact
from transom.inspection.edits.schemas import AblateHeads
from transom.inspection.edits.sweep import sweep
from transom.inspection.explain.cell import axis_message, explain_cell
from transom.inspection.explain.notation import Typeset
from transom.inspection.explain.steps import Calculation, Note, Step
from transom.inspection.lenses.logit_attribution import attribute_logit
from transom.inspection.lenses.logit_lens import read_streams
from transom.inspection.lenses.readout import flat_logits, is_pooled, log_probs, output_stack
from transom.inspection.messages.tables import message
from transom.inspection.names import description
from transom.inspection.trace import Trace
from transom.layers.attention import Attention
from transom.serving.copied import Copied
from transom.serving.passes import Pass, attention_layers, layer_error, number_error
from transom.serving.requests import CalculationRequest, HeadRequest, PassRequest, PositionRequest, TensorRequest

TOP = 5
"""Symbols that are listed, best first."""

N_KEYS = 12
"""Keys of a query that are listed, those with the largest weights."""

Json = dict[str, Any]


def answer_tensor(found: Pass, request: TensorRequest) -> Json:
    """Return a quantity, or the part of it at the fixed indices, of the first row of the batch."""
    x, axes = _part(found, request.name, request.index)
    row = found.trace.quantities[request.name].quantity
    name = request.name.rpartition(".")[2]
    return {
        "address": request.name,
        "name": name,
        "symbol": row.symbol,
        "formula": description(row),
        "axes": axes,
        "index": request.index,
        **encode_array(x),
    }


def _part(found: Pass, name: str, index: Mapping[str, int]) -> tuple[Tensor, list[str]]:
    """Return a quantity of the first row at fixed indices, and the axes that are left.

    Raises:
        ConfigError: there is no such quantity, axis or index.
    """
    if name not in found.trace.quantities:
        english = "name: expected the address of a quantity of this pass, found {found}; transom names RUN lists them"
        raise ConfigError(phrase("errors.quantity", english, found=f"{name!r:.80}"))
    trace = _with_part_of_map(found.trace, name, index)
    x = trace[name]
    axes, selected = trace.axes(name, x.ndim), {"n_heads": trace.heads, "query": trace.positions}
    if "batch" in axes:
        x = x.select(axes.index("batch"), 0)
        axes.remove("batch")
    for axis, i in index.items():
        if axis not in axes:
            raise ConfigError(f"index: expected axes of {name}, which are {', '.join(axes) or 'none'}, found {axis!r:.40}")
        at = axes.index(axis)
        if selected.get(axis) is None:
            _check_index(axis, x.shape[at], i)
            x = x.select(at, i)
        else:  # the trace has no other head or query
            x = x.select(at, 0)
        axes.remove(axis)
    return x, axes


def _check_index(axis: str, size: int, i: int) -> None:
    """Raise ConfigError if an axis has no such index."""
    if i >= size:
        raise ConfigError(axis_message(axis, size, i))


def _with_part_of_map(trace: Trace, name: str, index: Mapping[str, int]) -> Trace:
    """Return the trace that computes only one head or query of a map: whole maps of a long text do not fit into memory.

    Raises:
        ConfigError: there is no such head or query.
    """
    path, _, quantity = name.rpartition(".")
    if quantity not in SLICED_MAPS or not is_exact(trace.activations.module(path)):
        return trace
    _, n_heads, n_queries, _ = trace.activations[f"{path}.q"].shape
    for axis, size in (("n_heads", n_heads), ("query", n_queries)):
        _check_index(axis, size, index.get(axis, 0))
    heads, positions = ([index[axis]] if axis in index else None for axis in ("n_heads", "query"))
    return Trace(trace.activations, [trace.quantities[name]], heads, positions, trace.tokens, trace.edited)


def encode_array(x: Tensor) -> Json:
    """Return shape and range of a tensor, and its elements as float32, little endian, in base64."""
    x = x.detach().float().cpu().contiguous()
    finite = x[x.isfinite()]
    low, high = (finite.min().item(), finite.max().item()) if finite.numel() else (None, None)
    data = x.numpy().astype("<f4", copy=False).tobytes()
    return {"shape": list(x.shape), "data": base64.b64encode(data).decode(), "min": low, "max": high, "finite": len(finite) == x.numel()}


def answer_calculation(found: Pass, request: CalculationRequest, copied: Copied) -> Json:
    """Return the hand calculation of one element; edits of the pass must be in force."""
    model = found.model
    cell = explain_cell(model.run, found.input.batch, found.trace, request.name, request.index, request.temperature)
    focus = set(cell.steps)
    sections = [
        {
            "title": section.title,
            "focus": any(number == each for each, _ in focus),
            "steps": [_step(step, (number, i) in focus) for i, step in enumerate(section.steps)],
        }
        for number, section in enumerate(cell.explanation.sections)
    ]
    return {
        "title": cell.explanation.title,
        "summary": cell.explanation.summary,
        "value": cell.value if torch.tensor(cell.value).isfinite() else str(cell.value),
        "address": request.name,
        "index": request.index,
        "sections": sections,
        "command": _command(found, request, cell.options, copied),
        "python": _python(found, request, copied),
    }


def _step(step: Step, focus: bool) -> Json:
    """Return a step as the text that is shown."""
    if isinstance(step, Note):
        return {"kind": step.kind, "text": step.text}
    if isinstance(step, Calculation):
        expression, result = step.typeset()
        texts = {"label": step.label, "formula": step.formula, "expression": expression, "result": result}
        return {"kind": "calculation", **texts, "focus": focus}
    return {"kind": "values", "label": step.label, "formula": step.formula, "text": step.write(Typeset())}


def _command(found: Pass, request: CalculationRequest, options: Mapping[str, Any], copied: Copied) -> str:
    """Return the command that prints the calculation."""
    words = ["transom", "explain", str(found.model.folder), *([request.input.text] if request.input.text is not None else [])]
    symbols = found.model.symbols()
    names: dict[str, Callable[[Any], str]] = {
        "candidate": lambda index: symbols[index],
        "temperatures": lambda values: f"{values[0]:g}",
    }
    for name, value in options.items():
        if name == "candidate" and not symbols:  # the logits of an embedder are similarities of texts
            continue
        words += [f"--{name}"] if value is True else [f"--{'temperature' if name == 'temperatures' else name}", names.get(name, str)(value)]
    words += ["--target", request.input.target] if request.input.target is not None else []
    words += ["--sample", copied.sample] if copied.sample else ["--input", copied.file] if copied.file else []
    words += ["--edit", "EDITS.json"] if request.edits else []
    return shlex.join(words)


def _python(found: Pass, request: TensorRequest, copied: Copied) -> str:
    """Return the Python lines that read the element."""
    run, name = str(found.model.folder), request.name
    axes = [axis for axis in found.trace.axes(name) if axis != "batch"]
    index = ", ".join(["0", *(str(request.index[axis]) if axis in request.index else ":" for axis in axes)])
    imports, given = ["import transom"], repr(request.input.text)
    if copied.sample:
        given = _read_sample(run, copied.sample)
    elif request.input.text is None:
        imports = ["from pathlib import Path", "", *imports, "from transom.inspection.example_batch import build_example_batch"]
        given = f"build_example_batch(run, None, Path({copied.file!r})).batch"
    elif request.input.target is not None:
        imports.append("from transom.inspection.example_batch import build_example_batch")
        given = f"build_example_batch(run, {given}, None, target={request.input.target!r}).batch"
    if copied.sample or copied.samples:
        imports.append("from transom.tasks.run_data import load_sample")
    lines = [*imports, "", f"run = transom.load({run!r}, 'fp32')"]
    read = [f"logits, trace = transom.trace(run, {given}, [{name!r}])", f"print(trace[{name!r}][{index}])"]
    if request.edits:
        inputs = ", ".join(f"{sample!r}: {_read_sample(run, sample)}" for sample in copied.samples)
        scope = f"transom.edits(run, edits, inputs={{{inputs}}})" if inputs else "transom.edits(run, edits)"
        lines += [f"edits = {copied.edits!r}", f"with {scope}:", *(f"    {line}" for line in read)]
    else:
        lines += read
    return "\n".join(lines)


def _read_sample(run: str, sample: str) -> str:
    """Return the Python expression that reads a sample of the validation data."""
    return f"load_sample({run!r}, {sample!r}).to(run.model.device)"


def answer_logits(found: Pass, request: PositionRequest) -> Json:
    """Return the logits at a position."""
    row = _row(found, request.position)
    return {
        "position": request.position,
        "multi_label": bool(getattr(found.model.network.config, "multi_label", False)),
        **encode_array(row),
    }


def _row(found: Pass, position: int) -> Tensor:
    """Return the logits at a position.

    Raises:
        ConfigError: there is no such position.
    """
    if position >= (n := len(found.flat_logits)):
        raise number_error("position", n, position)
    return found.flat_logits[position]


def answer_lens(found: Pass, request: PositionRequest) -> Json:
    """Return what the residual stream after each block implies at a position."""
    _row(found, request.position)
    try:
        output_stack(found.model.network)
    except ConfigError as error:  # the page shows why there is no lens
        return {"answer": None, "streams": [], "note": error.line}
    lens = read_streams(found.trace.activations, positions=[request.position], top=TOP)
    best = zip(lens.top_symbols[:, 0, 0].tolist(), lens.top_probs[:, 0, 0].tolist(), strict=True)
    numbers = (x[:, 0, 0].tolist() for x in (lens.answer_probs, lens.answer_ranks, lens.kl))
    streams = [
        {"name": name, "top": _symbols(*top), "answer_p": p, "answer_rank": rank, "kl": kl}
        for name, top, p, rank, kl in zip(lens.streams, best, *numbers, strict=True)
    ]
    return {"answer": int(lens.answers[0, 0]), "streams": streams, "note": ""}


def _symbols(indices: list[int], p: list[float]) -> list[Json]:
    return [{"symbol": symbol, "p": each} for symbol, each in zip(indices, p, strict=True)]


def head_without(found: Pass, request: HeadRequest) -> PassRequest:
    """Return the request of the same pass with one head switched off.

    Raises:
        ConfigError: the model has no such layer or head.
    """
    if request.attention not in attention_layers(found.model):
        raise layer_error(request.attention)
    module = found.model.network.get_submodule(request.attention)
    assert isinstance(module, Attention)
    if request.head >= module.n_heads:
        raise number_error("head", module.n_heads, request.head)
    stack, _, rest = request.attention.partition(".blocks.")
    block, _, part = rest.partition(".")
    off = AblateHeads.model_validate({"stack": stack, "part": part, "blocks": [int(block)], "heads": [request.head]})
    return PassRequest(model=request.model, input=request.input, edits=(*request.edits, off))


def answer_head(found: Pass, without: Pass, request: HeadRequest) -> Json:
    """Return what one head does for one token: the keys that it reads, and the probabilities with and without it.

    The head of a recurrent decoder cannot be switched off: its pass without it is the pass, and a note says so.

    Args:
        found: the pass.
        without: the pass with the head switched off.
        request: layer, head, query, and the position and symbol whose probability is watched.
    """
    weights, _ = _part(found, f"{request.attention}.weights", {"n_heads": request.head, "query": request.query})
    network = found.model.network
    before, after = (log_probs(network, _row(each, request.position).double()).exp() for each in (found, without))
    symbol = int(before.argmax()) if request.symbol is None else request.symbol
    if symbol >= len(before):
        raise number_error("symbol", len(before), symbol)
    p, largest = weights.double(), weights.topk(min(N_KEYS, len(weights)))
    more, less = ((before - after).topk(min(TOP, len(before)), largest=most) for most in (True, False))
    switched = without is not found
    contribution, note = _contribution(found, request, symbol) if switched else (None, message("explain.notes.no_switch"))
    return {
        "keys": [{"position": key, "weight": weight} for weight, key in zip(*(x.tolist() for x in largest), strict=True)],
        "entropy": float(-(p * p.clamp_min(1e-300).log()).sum()),
        "symbol": symbol,
        "p": before[symbol].item(),
        "p_without": after[symbol].item() if switched else None,
        "contribution": contribution,
        "note": note,
        "promoted": _changes(more, before, after, 1),
        "suppressed": _changes(less, before, after, -1),
    }


def _changes(found: Any, before: Tensor, after: Tensor, sign: int) -> list[Json]:
    """Return the symbols whose probability the head raises (sign 1) or lowers (sign -1)."""
    pairs = zip(*(x.tolist() for x in found), strict=True)
    return [{"symbol": i, "p": before[i].item(), "p_without": after[i].item()} for change, i in pairs if change * sign > 0]


def _contribution(found: Pass, request: HeadRequest, symbol: int) -> tuple[float | None, str]:
    """Return what the head adds to a logit directly, and a note where it adds nothing or the share is unknown."""
    try:
        position = None if is_pooled(found.model.network) else request.position
        parts = attribute_logit(found.trace.activations, symbol, position=position or 0).contributions
    except ConfigError as error:
        return None, error.line
    here = [each.value for each in parts if each.part == request.attention and each.head == request.head]
    return (here[0], "") if here else (None, message("explain.notes.no_direct_share"))


def answer_sweep(found: Pass, request: PositionRequest) -> Json:
    """Return how the log-probability of the most probable symbol changes when each head is switched off alone."""
    _row(found, request.position)
    network, position = found.model.network, request.position
    symbol = int(_row(found, position).argmax())

    def target(logits: Tensor) -> Tensor:
        own = flat_logits(logits)[:, position]
        return log_probs(network, own)[:, symbol].double()

    rows = list[Json]()
    for stack, part in dict.fromkeys((path.partition(".")[0], path.rpartition(".")[2]) for path in attention_layers(found.model)):
        layers: dict[str, Any] = {"stack": stack, "part": part}
        result = sweep(found.model.run, found.input.batch, over="heads", target=target, **layers)
        rows += [
            {**layers, "block": int(row.block.rpartition(".")[2]), "head": row.number, "difference": row.change} for row in result.rows
        ]
    return {"symbol": symbol, "log_p": log_probs(network, _row(found, position).double())[symbol].item(), "heads": rows}
