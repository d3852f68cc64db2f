"""The lines that ``transom profile`` prints."""

from transom.cli.output import align_columns
from transom.cli.plan_table import format_bytes
from transom.data.reports.findings import count_noun
from transom.inspection.pages.number_format import format_percent
from transom.planning.hardware import describe_rate
from transom.training.step_profile import StepProfile


def profile_lines(found: StepProfile, unit: str) -> list[str]:
    """Return the lines of a profile: parts, components, operators, memory and advice."""
    sections = [_parts(found, unit), _components(found), _operators(found), _memory(found), [f"advice: {each}" for each in found.advice]]
    return [line for i, section in enumerate(sections) if section for line in ([""] if i else []) + section]


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:,.2f}"


def _table(rows: list[list[str]]) -> list[str]:
    return [f"  {line}" for line in align_columns(rows)]


def _parts(found: StepProfile, unit: str) -> list[str]:
    whole = found.profiled_seconds
    rows = [["", "ms", "share"]]
    rows += [[name, _milliseconds(seconds), format_percent(seconds / whole, 1)] for name, seconds in found.parts.items()]
    rate = describe_rate(found.utilization * found.peak_flops, found.peak_flops)
    of = f"median of {found.steps:,} steps" if found.steps > 1 else "one step"
    return [
        f"{found.name}: a step takes {_milliseconds(found.seconds)} ms in {found.precision} with {count_noun(found.threads, 'thread')},"
        f" {of} of {found.tokens:,.0f} {unit}",
        f"matrix products: {found.flops:.3g} FLOPs per step, {rate}",
        f"the profiler adds {found.overhead:+.1%}; the times below are those of a step with it, {_milliseconds(whole)} ms",
        *_table([*rows, ["sum", _milliseconds(whole), ""]]),
    ]


def _components(found: StepProfile) -> list[str]:
    rows = [["forward and backward pass", "forward ms", "backward ms", "share", "FLOPs", "of peak"]]
    for name, each in found.components.items():
        reached = found.utilization_of(name)
        flops = f"{each.flops:.3g}" if each.flops else ""
        cells = [_milliseconds(each.forward), _milliseconds(each.backward), format_percent(each.seconds / found.profiled_seconds, 1)]
        rows.append([name, *cells, flops, "" if reached is None else format_percent(reached, 0)])
    return _table(rows)


def _operators(found: StepProfile) -> list[str]:
    rows = [["operators with the most time", "ms", "share", "calls"]]
    for each in found.operators:
        rows.append([each.name, _milliseconds(each.seconds), format_percent(each.seconds / found.profiled_seconds, 1), f"{each.calls:,}"])
    return _table(rows)


def _memory(found: StepProfile) -> list[str]:
    used, plan = found.memory, found.memory.predicted
    average = [["averaged weights", format_bytes(used.average), format_bytes(plan.average)]] if used.average or plan.average else []
    rows = [
        ["memory of the first steps", "used", "transom plan"],
        ["weights, and a copy for validation", format_bytes(used.weights), format_bytes(plan.weights + plan.validation_copy)],
        ["gradients", format_bytes(used.gradients), format_bytes(plan.gradients)],
        ["optimizer state", format_bytes(used.optimizer), format_bytes(plan.optimizer)],
        *average,
        [
            "activations, buffers and libraries",
            format_bytes(used.activations),
            format_bytes(plan.activations + plan.workspace + plan.libraries),
        ],
        ["sum without data", format_bytes(used.peak - used.data), format_bytes(plan.total)],
        ["data, and what else was loaded, not planned", format_bytes(used.data), "-"],
        ["peak", format_bytes(used.peak), "-"],
    ]
    return _table(rows)
