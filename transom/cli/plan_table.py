"""The lines that ``transom plan`` prints."""

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from transom.cli.output import align_columns
from transom.config.presets import format_count as format_published
from transom.exchange.family import Candidate
from transom.inspection.pages.number_format import format_count, format_duration, format_parameter_count, format_percent
from transom.planning.plan import Plan
from transom.planning.presets import PresetCount
from transom.training.plan_check import JUDGED_BYTES, MEMORY_TOLERANCE, TIME_TOLERANCE, PlanCheck

WIDTH = 100
"""Longest line in characters."""


def plan_lines(plan: Plan) -> list[str]:
    """Return the lines of a plan: parameters, FLOPs, memory, cache, time and what fits."""
    sections = [_parameters(plan), _flops(plan), _memory(plan), _cache(plan), _time(plan), _fit(plan)]
    return [f"{plan.name}: {plan.family}", *(line for section in sections if section for line in ("", *section))]


def published_lines(found: PresetCount | None) -> list[str]:
    """Return the lines that compare a preset, with its published sizes, with its article; none for a recipe."""
    if found is None:
        return []
    p, ours = found.preset, f"{found.comparable:,} parameters"
    if found.difference is not None:
        ours += f", {found.difference:+.1%} from the published {format_published(p.parameters)}"
    counted = "" if p.counts == "all" else f" {p.counts}"
    missing = [
        f"not in transom: {each.component}" + (f" ({each.parameters:,} parameters)" if each.parameters else "") for each in p.missing
    ]
    return [
        "",
        *_wrap([f"published: {p.source}, {p.section}", f"with its sizes {p.name} has {ours}{counted}", *filter(None, [p.why]), *missing]),
    ]


def published_json(found: PresetCount | None) -> dict[str, Any] | None:
    """Return the comparison as JSON-serializable data; None for a recipe."""
    if found is None:
        return None
    p = found.preset
    facts = {"source": p.source, "section": p.section, "parameters": p.parameters, "counts": p.counts, "why": p.why}
    return {**facts, "ours": found.comparable, "difference": found.difference, "missing": [each.model_dump() for each in p.missing]}


def check_lines(check: PlanCheck) -> list[str]:
    """Return the lines that compare a plan with a run."""
    rows = [
        ["", "predicted", "used", "difference"],
        ["peak memory", format_bytes(check.plan.memory.total), format_bytes(check.memory_used), f"{check.memory_difference:+.1%}"],
        ["seconds per step", f"{check.seconds_predicted:.4g}", f"{check.seconds_used:.4g}", f"{check.time_difference:+.1%}"],
    ]
    small = check.memory_used < JUDGED_BYTES
    expected = f"expected: memory within {MEMORY_TOLERANCE:.0%} for runs of 1 GiB or more, seconds per step within {TIME_TOLERANCE:.0%}"
    lines = [*align_columns(rows), *_wrap([expected + ("; this run is smaller" if small else "")])]
    held = f"used is what the first steps needed; with freed memory that it kept, the process held up to {format_bytes(check.memory_held)}"
    return [*lines, *_wrap([held, f"planned with {_batch(check.plan)}; the process also holds the training data"])]


def format_bytes(size: float) -> str:
    """Format a number of bytes with a binary unit.

    >>> format_bytes(36_864), format_bytes(497_759_232), format_bytes(2**31)
    ('36 KiB', '474.7 MiB', '2.0 GiB')
    """
    for limit, unit in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB")):
        if size >= limit:
            return f"{size / limit:,.1f} {unit}"
    return f"{size / 2**10:,.4g} KiB"


def _wrap(sentences: Iterable[str]) -> list[str]:
    return [line for sentence in sentences for line in textwrap.wrap(sentence, WIDTH, subsequent_indent="  ")]


def _table(rows: list[list[str]]) -> list[str]:
    return [f"  {line}" for line in align_columns(rows)]


def _parameters(plan: Plan) -> list[str]:
    p = plan.parameters
    rows = [[part, format_count(count), format_percent(count / p.total, 1)] for part, count in p.parts.items()]
    return [format_parameter_count(p.total, p.active), *_table([*rows, ["sum", format_count(p.total), ""]])]


def _flops(plan: Plan) -> list[str]:
    f = plan.flops
    head = f"{f.forward:,.0f} FLOPs per {f.unit} forward, {f.training:,.0f} in training"
    rows = [[part, f"{flops:,.0f}", format_percent(flops / f.forward, 1)] for part, flops in f.parts.items()]
    rule = f"6 N = {f.six_n:,.0f}, the rule of thumb with all {f.six_n / 6:,.0f} parameters; training has {f.above_six_n:+.1%}"
    return [head, *_table(rows), *_wrap([*f.formula, *([] if f.unit == "image" else [rule])])]


def _batch(plan: Plan) -> str:
    length = plan.target or plan.source
    if plan.flops.unit == "image":
        return f"{plan.rows:,} images per forward pass, {plan.batch:,} per step"
    return f"{plan.rows:,} rows of {length:,} tokens per forward pass, {plan.batch:,} tokens per step"


def _memory(plan: Plan) -> list[str]:
    m, s = plan.memory, plan.step
    state = [
        ("weights", m.weights),
        ("copy for validation", m.validation_copy),
        ("gradients", m.gradients),
        ("optimizer state", m.optimizer),
        ("averaged weights", m.average),
        ("activations, at the peak", m.activations),
        ("buffers of operations", m.workspace),
        ("libraries", m.libraries),
    ]
    rows = [[name, format_bytes(size), format_percent(size / m.total, 1)] for name, size in state if size]
    shared = {"none": "", "optimizer": ", optimizer state sharded", "full": ", weights, gradients and optimizer state sharded"}
    head = f"{format_bytes(m.total)} of memory per device in {plan.precision} with {_batch(plan)}{shared[plan.sharding]}"
    saved = [] if s is None else [f"saved for the backward pass: {format_bytes(s.saved)}; largest tensor: {format_bytes(s.largest)}"]
    return [*_wrap([head]), *_table([*rows, ["sum", format_bytes(m.total), ""]]), *_wrap([*saved, *plan.notes])]


def _cache(plan: Plan) -> list[str]:
    c = plan.cache
    if c is None:
        return []
    length = plan.target
    if not c.per_token:
        return _wrap([f"generation keeps {format_bytes(c.fixed)} per row, however long the text"])
    sides = f", and {format_bytes(c.per_source_token)} per source token" if c.per_source_token else ""
    head = f"generation caches {format_bytes(c.per_token)} per token and row{sides}: {format_bytes(c.of_row(length))} for {length:,} tokens"
    kinds = {"keys and values for every head (MHA)": c.multi_head, "this model": c.grouped, "shared by all heads (MQA)": c.multi_query}
    table = _table([[name, format_bytes(size)] for name, size in kinds.items()])
    window = f"with a window of {c.window:,} tokens, {format_bytes(c.windowed(length))} would do; the cache keeps all" if c.window else ""
    return [*_wrap([head]), *table, *_wrap([window] if window else [])]


def _time(plan: Plan) -> list[str]:
    t, b, lines = plan.time, plan.budget, list[str]()
    if t is None:
        lines.append("no times: --flops-per-second gives the peak rate of a device")
    else:
        lines.append(
            f"{format_duration(t.seconds)} for {t.steps:,} steps of {t.seconds_per_step:.3g} s:"
            f" {t.flops_per_step:.3g} FLOPs / ({t.devices:,} x {t.flops_per_second:.3g} FLOP/s, {t.rate_source}, x {t.utilization:.0%})"
        )
        if t.device_hours >= 10:
            lines.append(f"{t.device_hours:,.0f} device hours")
    if b is not None:
        lines.append(f"{b.tokens:,} tokens, {b.tokens_per_parameter:.3g} per parameter: {b.flops:.3g} FLOPs")
        lines.append(
            f"compute-optimal (Hoffmann et al. 2022, about 20 tokens per parameter): {b.optimal_tokens:,} tokens,"
            f" {b.optimal_flops:.3g} FLOPs; with the FLOPs of this plan a model of {b.optimal_parameters:,.0f} parameters"
        )
    return _wrap(lines)


def _fit(plan: Plan) -> list[str]:
    f, size = plan.fit, format_bytes(plan.fit.device_bytes)
    verdict = f"this {'fits' if f.fits else 'does not fit'} into {size} per device"
    if plan.step is not None:
        unit = "image" if plan.flops.unit == "image" else f"row of {plan.target or plan.source:,} tokens"
        most = f"{f.largest_rows:,} {unit.replace('image', 'images').replace('row', 'rows')} per forward pass fit"
        verdict += {0: f"; not even one {unit} fits", 1: f"; one {unit} per forward pass fits"}.get(f.largest_rows, f"; at most {most}")
    names = {"none": "nothing", "optimizer": "the optimizer state", "full": "weights, gradients and optimizer state"}
    needs = [f"{n:,} with {names[kind]} sharded" for kind, n in f.fewest_devices.items() if n is not None]
    least = f"devices of {size} that are needed at least: {', '.join(needs)}" if needs else f"no number of devices of {size} suffices"
    return _wrap([verdict, least])


def export_line(candidates: Sequence[Candidate]) -> str:
    """Return a line on the model types of the transformers library that the model can be exported to, or on what stands in the way."""
    fitting = list(dict.fromkeys(candidate.family.model_type for candidate in candidates if not candidate.obstacles))
    if fitting:
        return f"export: can become a model of type {', '.join(fitting)} of the transformers library (transom export)"
    if not candidates:
        return "export: no model type of the transformers library is of this kind"
    nearest = candidates[0]
    return (
        f"export: no model type equals it; nearest is {nearest.family.model_type}, in the way {'; '.join(map(str, nearest.obstacles[:4]))}"
    )
