"""The lines that ``transom rehearse`` prints."""

import textwrap
from collections.abc import Iterable

from transom.cli.output import align_columns
from transom.cli.plan_table import WIDTH, format_bytes
from transom.inspection.pages.number_format import format_count
from transom.planning.cluster import collective_seconds, rank_group
from transom.planning.layout import format_layout
from transom.training.rehearse import RankCost, Rehearsal

MAX_STAGES = 6
"""Most stages that the table shows: the first ones and the last one."""


def rehearsal_lines(r: Rehearsal) -> list[str]:
    """Return the lines of a rehearsal: the mesh, a rank of each stage, the collectives, the time, what was tried, and what fits."""
    sections = [_ranks(r), _collectives(r), _time(r), _tried(r), _fit(r)]
    nodes = -(-r.layout.n_processes // r.cluster.devices_per_node)
    head = [
        f"{r.name}: {r.family} on {format_layout(r.layout)}",
        f"{r.layout.n_processes:,} processes on {_count(nodes, 'machine')} of {r.cluster.devices_per_node:,} x {r.cluster.name}",
        f"{r.batch:,} {r.unit} per step in {r.precision}: {_count(r.layout.n_batch_parts, 'part')} of the batch x"
        f" {_count(r.micro.n, 'micro-batch', 'es')} x {_count(r.micro.rows, 'row')}",
    ]
    return [*_wrap(head), *(line for section in sections for line in ("", *section))]


def _ranks(r: Rehearsal) -> list[str]:
    """Return the table of one rank per stage."""
    shown = r.ranks if len(r.ranks) <= MAX_STAGES else (*r.ranks[: MAX_STAGES - 1], r.ranks[-1])
    names = ["stage", "blocks", "parameters", "weights", "gradients", "optimizer", "gathered", "activations", "memory"]
    head = "one rank of each stage: its parameters, and bytes of memory; in stage 0, rank 0"
    if len(shown) < len(r.ranks):
        head += f"; stages {MAX_STAGES - 1} to {len(r.ranks) - 2} are left out"
    first = r.ranks[0].memory
    note = f"rank 0 validates alone, by a second model of {format_bytes(first.validation_copy)}"
    if first.validated:
        note += f", for which it gathers {format_bytes(first.validated)} of weights"
    return [*_wrap([head]), *_table([names, *(_rank(r, rank) for rank in shown)]), *_wrap([note])]


def _rank(r: Rehearsal, rank: RankCost) -> list[str]:
    m = rank.memory
    sizes = [m.weights + m.average, m.gradients, m.optimizer, m.gathered, m.activations, m.total]
    number = format_count(rank.parameters.sharded)
    return [str(rank.stage.index), str(rank.stage.n_blocks), number, *(format_bytes(size) if size else "0" for size in sizes)]


def _collectives(r: Rehearsal) -> list[str]:
    """Return the table of the collectives of a rank of the slowest stage."""
    rank = max(r.ranks, key=lambda each: each.seconds.micro_batch)
    if not rank.collectives:
        return ["no collectives"]
    rows = [["collective", "axis", "of", "count", "size", "sent", "seconds"]]
    for each in rank.collectives:
        group, count = rank_group(r.layout, each.axis, r.cluster.devices_per_node), each.per_step_count(r.micro.n)
        seconds = count * collective_seconds(each.kind, each.n_bytes, group, r.cluster)
        sent = format_bytes(each.sent(r.layout, r.micro.n))
        name = each.kind + (" *" if each.can_overlap and r.cluster.overlaps else "")
        rows.append([name, f"{each.axis} {group.size}", each.what, f"{count:,}", format_bytes(each.n_bytes), sent, f"{seconds:.2g}"])
    of_stage = f" of stage {rank.stage.index}, the slowest" if len(r.ranks) > 1 else ""
    head = f"collectives of a rank{of_stage}, per step: size of each tensor, and bytes that the rank sends"
    note = ["  * while the device computes"] if r.cluster.overlaps and any(each.can_overlap for each in rank.collectives) else []
    return [*_wrap([head]), *(f"  {line}" for line in align_columns(rows, n_left=3)), *note]


def _time(r: Rehearsal) -> list[str]:
    s, slowest = r.seconds, r.seconds.slowest
    lines = [
        f"{s.total:.3g} s per step, {r.batch / s.total:,.0f} {r.unit} per second, {r.utilization:.1%} model FLOPs utilization",
        f"a micro-batch: {slowest.compute:.3g} s of computation at {r.cluster.utilization:.0%} of {r.cluster.flops:.3g} FLOP/s,"
        f" {slowest.waiting:.3g} s of collectives"
        + (f", {slowest.sharding:.3g} s of collectives of shards" if slowest.sharding else "")
        + (" at the same time" if slowest.sharding and slowest.overlaps else ""),
    ]
    last = max(range(r.layout.pipeline), key=lambda i: s.stages[i].per_step)
    if slowest_sum := s.stages[last].per_step:
        of_stage = f", in stage {last}" if r.layout.pipeline > 1 else ""
        lines.append(f"sums of gradients after the last micro-batch{of_stage}: {slowest_sum:.3g} s")
    if r.layout.pipeline > 1:
        p, m = r.layout.pipeline, r.micro.n
        bubble = f"bubble: (p - 1) / (m + p - 1) = {p - 1} / {m + p - 1} = {s.bubble:.1%} (Narayanan et al. 2021)"
        lines.append(f"{bubble}; with these stages, which differ, a stage waits {s.idle:.1%} of the time on average")
    lines.append(f"rates: {r.cluster.source}")
    return _wrap(lines)


def _tried(r: Rehearsal) -> list[str]:
    """Return the lines on what was really built and computed."""
    b, t = r.built, r.trial
    of = "" if b.built == b.distinct else f" of {b.distinct:,}"
    lines = [f"built on this machine, without values: {_count(b.built, 'part')}{of} of the model, each of the size above"]
    if t is not None:
        steps = "; ".join(f"loss {step.loss:.6f}, norm {step.grad_norm:.4g}" for step in t.steps)
        lines += [
            f"tried on this machine: {len(t.steps)} steps of a model of {t.parameters:,} parameters in {t.layout.n_processes} processes,"
            f" {t.seconds:.0f} s",
            f"  {steps}",
            f"  the same steps in one process differ by at most {t.difference:.1e} (relative, float64)",
        ]
    return _wrap(lines)


def _fit(r: Rehearsal) -> list[str]:
    size, m, stage = format_bytes(r.cluster.device_bytes), r.largest.memory, r.largest.stage
    rank = f"a rank of stage {stage.index}" if stage.index else "rank 0"
    verdict = f"this {'fits' if r.fits else 'does not fit'}: {rank} needs {format_bytes(m.total)} of {size} per device, {m.peak}"
    if not r.fits:
        if r.fitting is not None:
            verdict += f"; the nearest mesh that fits: {format_layout(r.fitting)} ({r.fitting.n_processes:,} processes)"
        elif (building := r.ranks[0].memory.building) > r.cluster.device_bytes:
            verdict += f"; no mesh fits, since rank 0 has the whole model twice when it starts, {format_bytes(building)}"
        else:
            verdict += "; no mesh that fits was found"
    return _wrap([verdict, *r.notes])


def _count(n: int, noun: str, ending: str = "s") -> str:
    return f"{n:,} {noun}{'' if n == 1 else ending}"


def _wrap(sentences: Iterable[str]) -> list[str]:
    return [line for sentence in sentences for line in textwrap.wrap(sentence, WIDTH, subsequent_indent="  ")]


def _table(rows: list[list[str]]) -> list[str]:
    return [f"  {line}" for line in align_columns(rows)]
