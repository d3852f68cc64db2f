"""Write the results as tables and charts into benchmarks/README.md, README.md and docs/expectations.md: `python -m benchmarks.tables`."""

import json
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from transom.inspection.pages.line_chart import Line, chart_svg_file, line_chart

FOLDER = Path(__file__).parent
BENCHMARKS_README, README, EXPECTATIONS_PAGE = FOLDER / "README.md", FOLDER.parent / "README.md", FOLDER.parent / "docs" / "expectations.md"
EXPECTATIONS = FOLDER / "results" / "expectations.json"
TRANSLATION, LAYOUTS, PATTERNS, COMPONENTS, GPU = (
    FOLDER / "results" / f"{name}.json" for name in ("translation", "layouts", "patterns", "components", "gpu")
)
FURTHER_TRANSLATIONS, FAMILIES, BUDGETS, TRAINING_PATHS = (
    sorted((FOLDER / "results").glob(f"{name}-*.json")) for name in ("translation", "families", "step_budget", "training_paths")
)
"""Results of one benchmark on different kinds of processors, such as families-avx512.json."""

MULTI30K = {language: FOLDER / "results" / f"multi30k-{language}.json" for language in ("de", "fr")}
BEGIN, END = "<!-- results: written by python -m benchmarks.tables -->\n", "<!-- end of results -->\n"
NO_RESULTS = "No results yet.\n"


def translation_tables(result: dict[str, Any], is_further: bool = False) -> str:
    """Return the environment and tables of the translation benchmark as Markdown, one level lower with ``is_further``."""
    facts = result["facts"]
    peak = ", ".join(f"{name} {rate:,} GFLOP/s" for name, rate in facts["matmul_gflops"].items())
    parts = [
        f"{facts['date']}; {facts['processor']}; {facts['cores']} cores, {facts['threads']} threads per system, load average"
        f" {facts['load_before']} before the run; {', '.join(f'{name} {version}' for name, version in facts['versions'].items())};"
        f" `{facts['command']}`. Measured peak: {peak}; memory bandwidth (read) {facts['read_gbytes']} GB/s.\n"
    ]
    level = "####" if is_further else "###"
    parts += [f"{level} {title}\n\n{_markdown_table(rows)}" for title, rows in _tables(result)]
    what = ", ".join(label for part, label in (("start", "start"), ("train", "training"), ("decode", "decoding")) if part in result)
    head = [f"### Another run ({what}): {facts['processor'].split(': ')[1]}\n"] if is_further else []
    return "\n".join([*head, *parts])


SUMMARY = {
    ("train", "transformer-base"): "training transformer-base, target tokens/s",
    ("train", "multi30k"): "training a small translator (d_model 256), target tokens/s",
    ("decode", "batch 32 beam 4"): "translating 32 sentences with beam size 4, tokens/s",
    ("decode", "batch 32 greedy"): "translating 32 sentences greedily, tokens/s",
    ("decode", "batch 1 greedy"): "translating one sentence greedily, tokens/s",
}
"""The workloads in the summary of README.md, with their labels."""


def summary_table(result: dict[str, Any]) -> str:
    """Return the table of README.md: the fastest modes of transom and of its peers, and the duration of commands."""
    rows = []
    for (kind, name), label in SUMMARY.items():
        ours, theirs = (
            max((row for row in result[kind][name] if (row["system"] == "transom") == own), key=lambda row: float(row["tokens_per_second"]))
            for own in (True, False)
        )
        mode = theirs["mode"].replace("split batch", "batch divided between threads")
        peer = f"{theirs['tokens_per_second']:,.0f}, {theirs['system']} {mode}"
        rows.append({"workload": label, "transom": f"{_with_quartiles(ours)}, {ours['mode']}", "best peer": peer})
    commands = [f"`{row['command']}` {row['seconds']:.2f}" for row in result["start"]]
    facts = result["facts"]
    caption = (
        f"{facts['date']}, torch {facts['versions']['torch']}, `make bench`. Medians and quartiles of the fastest mode of each system,"
        " measured in one run."
    )
    return f"{caption}\n\n{_markdown_table(rows)}\nSeconds from start to end: {', '.join(commands)}.\n"


def _with_quartiles(row: dict[str, Any]) -> str:
    return f"{row['tokens_per_second']:,.0f} ({row['low']:,.0f} to {row['high']:,.0f})"


def multi30k_table(language: str, records: Sequence[dict[str, Any]]) -> str:
    """Return the BLEU table of Multi30k: one row per seed, mean and standard deviation."""
    metrics = [name for name in records[0] if " at " in name]
    rows: list[dict[str, Any]] = [
        {"seed": record["seed"], **{name: record[name] for name in metrics}, "steps": record["steps"], "minutes": record["minutes"]}
        for record in records
    ]
    if len(records) > 1:
        for name, summary in (("mean", statistics.fmean), ("std", statistics.stdev)):
            values = {metric: round(summary([record[metric] for record in records]), 2) for metric in metrics}
            rows.append({"seed": name, **values, "steps": "", "minutes": ""})
    commands = ", ".join(dict.fromkeys(f"`{record['facts']['command']}`" for record in records))
    threads = ", ".join(dict.fromkeys(str(record["facts"]["threads"]) for record in records))
    facts, target = records[0]["facts"], {"de": "German", "fr": "French"}[language]
    caption = f"{facts['date']}; {facts['processor']}; threads or processes per run: {threads}; {commands}; {records[0]['signature']}."
    return f"### BLEU on Multi30k, English to {target}\n\n{caption}\n\n{_markdown_table(rows)}"


def pattern_tables(result: dict[str, Any]) -> str:
    """Return the tables of attention patterns beside full attention, one table per sequence length."""
    facts, rows = result["facts"], result["rows"]
    caption = (
        f"{facts['date']}; {facts['processor']}; {facts['threads']} threads, load average {facts['load_before']} before the run; torch"
        f" {facts['versions']['torch']}; `{facts['command']}`. One causal attention layer with {result['shape']['n_heads']} heads of"
        f" dimension {result['shape']['d_head']}, batch size 1, float32; medians and quartiles."
    )
    parts = [f"### Attention patterns\n\n{caption}\n"]
    for tokens in dict.fromkeys(row["tokens"] for row in rows):
        selected = [row for row in rows if row["tokens"] == tokens]
        full = selected[0]
        table = [
            {
                "pattern": row["pattern"],
                "method": row["method"],
                "visible_pairs": f"{row['visible_pairs']:,} ({row['visible_pairs'] / full['visible_pairs']:.1%})",
                **{
                    f"{label}, ms": f"{row[f'{key}_ms']:,.1f} ({row[f'{key}_ms_low']:,.1f} to {row[f'{key}_ms_high']:,.1f})"
                    for label, key in (("forward", "forward"), ("forward and backward", "forward_backward"))
                },
                "time relative to full": f"{row['forward_backward_ms'] / full['forward_backward_ms']:.2f}",
                "memory, MB": "" if row["forward_backward_bytes"] is None else f"{row['forward_backward_bytes'] / 1e6:,.0f}",
                "plan, ms": "" if row["plan_ms"] is None else f"{row['plan_ms']:,.1f}",
            }
            for row in selected
        ]
        parts.append(f"#### {tokens:,} tokens\n\n{_markdown_table(table)}")
    return "\n".join(parts)


def layout_tables(result: dict[str, Any]) -> str:
    """Return the tables of layouts beside one process: overhead, collectives, checkpoints, and steps with their predictions."""
    facts = result["facts"]
    caption = (
        f"{facts['date']}; {facts['processor']}; {facts['cores']} cores, load average {facts['load_before']} before the run; torch"
        f" {facts['versions']['torch']}; `{facts['command']}`."
    )
    overhead = ", ".join(
        f"{name} {each['median']:.3f} (quartiles {each['low']:.3f} and {each['high']:.3f})" for name, each in result["overhead"].items()
    )
    parts = [f"Seconds of a step of one process / those of a plain PyTorch loop with the same model and loss: {overhead}.\n"]
    parts.append(f"#### Collectives of gloo between two processes\n\n{_markdown_table(result['collectives'])}")
    parts.append(f"#### Checkpoints while training continues, seconds\n\n{_markdown_table(result['checkpoints'])}")
    parts += [f"#### Training, {name}\n\n{_markdown_table(_without(rows, 'system'))}" for name, rows in result["train"].items()]
    return "\n".join([f"### Layouts of two processes\n\n{caption}\n", *parts])


def _without(rows: Sequence[dict[str, Any]], column: str) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != column} for row in rows]


def component_tables(result: dict[str, Any]) -> str:
    """Return the loss and cost of each component in a small model, one table per family, and the early-exit results."""
    facts, parts = result["facts"], list[str]()
    caption = (
        f"{facts['date']}; {facts['processor']}; {facts['threads']} thread; torch {facts['versions']['torch']}; `{facts['command']}`."
        " Training is short and uses one seed, so differences smaller than the variation between seeds are not significant. The default"
        " components share the row of the base model."
    )
    for other in {str(row["facts"]): row["facts"] for row in result["rows"] if "facts" in row}.values():
        caption += f" Rows with \\*: {other['date']}; {other['processor']}; load average {other['load_before']} before the run."
    for family in dict.fromkeys(row["family"] for row in result["rows"]):
        selected = [row for row in result["rows"] if row["family"] == family]
        base = next((row for row in selected if row["names"][0] == "base"), None)
        table = [
            {
                "component": ", ".join(row["names"])
                + (f": `{row['settings'][-1]}`" if "pattern=" in row["settings"][-1] else "")
                + (" \\*" if "facts" in row else ""),
                "loss": f"{row['validation']['loss']:.3f}",
                "difference to base": f"{row['validation']['loss'] - base['validation']['loss']:+.3f}" if base else "",
                "accuracy": f"{row['validation']['accuracy']:.1f}" if "accuracy" in row["validation"] else "",
                "ms per step": f"{row['ms_per_step']:.0f}",
                "parameters": f"{row['parameters']:,}",
            }
            for row in selected
        ]
        losses = [row["validation"]["loss"] for row in selected if row["names"][0].startswith("base")]
        seeds = f"; the losses of {len(losses)} seeds of the base span {max(losses) - min(losses):.3f} nats" if len(losses) > 1 else ""
        parts.append(f"#### {family}, {selected[0]['n_steps']} steps{seeds}\n\n{_markdown_table(table)}")
    early_exit = [
        {
            "component": row["names"][0],
            "threshold": each["threshold"],
            "loss": each["loss"],
            "blocks per token": each["blocks"],
            "difference to full depth": f"{each['loss'] - row['early_exit'][-1]['loss']:+.4f}",
        }
        for row in result["rows"]
        for each in row.get("early_exit", [])
    ]
    if early_exit:
        parts.append(
            f"#### Early exit by confidence threshold: nats per token and mean exit depth of 4 blocks\n\n{_markdown_table(early_exit)}"
        )
    return "\n".join([f"### Components\n\n{caption}\n", *parts])


def _caption(facts: dict[str, Any], libraries: Sequence[str]) -> str:
    """Return when, where, beside which versions of libraries and by which command a run was measured."""
    versions = ", ".join(f"{name} {facts['versions'][name]}" for name in libraries)
    return (
        f"{facts['date']}; {facts['processor']}; {facts['threads']} threads per system, load average {facts['load_before']} before the run;"
        f" {versions}; `{facts['command']}`."
    )


def family_tables(result: dict[str, Any]) -> str:
    """Return the tables of decoders, encoders and ViT beside the transformers library, by runs."""
    runs: dict[str, list[str]] = {}
    for family, measured in result.items():
        facts = measured["facts"]
        caption = _caption(facts, [name for name in facts["versions"] if name != "ctranslate2"])  # which translates only
        tables = [f"#### {family}, {name}\n\n{_markdown_table(rows)}" for name, rows in measured["tables"].items()]
        runs.setdefault(caption, []).extend(tables)
    return _by_run("Other model families", facts, runs)


def budget_tables(result: dict[str, Any]) -> str:
    """Return the tables of where a training step spends its time, by runs.

    Results without ``steps`` are from before steps were timed without the profiler.
    """
    runs: dict[str, list[str]] = {}
    for model, measured in result.items():
        facts = measured["facts"]
        peak = ", ".join(f"{name} {rate:,} GFLOP/s" for name, rate in facts["matmul_gflops"].items())
        caption = _caption(facts, ("torch", "transformers"))
        caption += f" Peak before the run: {peak}; memory bandwidth (read) {facts['read_gbytes']} GB/s."
        if "steps" not in measured:
            caption += " Whole steps, and their shares of the peak rate, were timed with the profiler."
        runs.setdefault(caption, []).append(f"#### {model}\n\n{_markdown_table(measured['table'])}")
    return _by_run("Where a training step spends its time", facts, runs)


def _by_run(title: str, facts: dict[str, Any], runs: dict[str, list[str]]) -> str:
    """Return a section for a kind of processor, with the tables of each run after its caption."""
    parts = (part for caption, tables in runs.items() for part in (caption + "\n", *tables))
    return "\n".join([f"### {title}: {facts['processor'].split(': ')[1]}\n", *parts])


def path_tables(result: dict[str, Any]) -> str:
    """Return the tables of training steps by native kernels, ``torch.compile`` and PyTorch's operations, by runs."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for measured in result.values():
        facts = measured["facts"]
        runs.setdefault(f"{_caption(facts, ('torch',))} Milliseconds per step.", []).append(measured["row"])
    return _by_run("Ways to compute a training step", facts, {caption: [_markdown_table(rows)] for caption, rows in runs.items()})


def gpu_table(result: dict[str, Any]) -> str:
    """Return the table of training on a GPU; a later run replaces all rows of its families."""
    runs = [({"facts": result["facts"]} | result[name]) for name in ("speed", "speed_with_padded_vocabulary") if name in result]
    rows: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        own: dict[str, list[dict[str, Any]]] = {}
        for name, found in run.items():
            if name not in ("facts", "peak") and "error" not in found:
                own.setdefault(name.split(", ")[0], []).append(_gpu_row(name, found))
        rows |= own
    captions = [_caption(run["facts"], ("torch", "transformers")) for run in runs]
    text = " ".join([f"{runs[0]['facts']['gpu']}.", *captions])
    return f"### Training on a GPU\n\n{text}\n\n{_markdown_table([row for family in rows.values() for row in family])}"


def _gpu_row(name: str, found: dict[str, Any]) -> dict[str, Any]:
    speed = {key: f"{found[key]:,}" for key in ("tokens_per_second", "low", "high")}
    share = f"{found['share_of_peak']:.1%}"
    return {"shape_and_system": name, **speed, "share_of_the_bf16_peak": share, "memory": f"{found['gib']:.1f} GiB"}


TASKS = {
    "translation": "Translation",
    "classification": "Classification of texts",
    "language": "Language model",
    "images": "Classification of images",
}
"""Titles of the sections of docs/expectations.md, by task."""


def expectation_tables(records: Sequence[dict[str, Any]]) -> str:
    """Return a table and a picture per task: the metric by number of examples and minutes."""
    sections = []
    for task, title in TASKS.items():
        of_task = [record for record in records if record["task"] == task]
        if not of_task:
            continue
        unit, metric = of_task[0]["unit"], of_task[0]["metric"]
        minutes = sorted({record["minutes"] for record in of_task})
        cells = {(record["examples"], record["minutes"]): record for record in of_task}
        rows = []
        for n in sorted({record["examples"] for record in of_task}):
            row: dict[str, Any] = {unit: f"{n:,}"}
            for limit in minutes:
                row[f"{metric} after {limit:g} minutes"] = _rounded(cells[n, limit]["value"]) if (n, limit) in cells else ""
            rows.append(row | {f"trained, {limit:g} minutes": _describe_training(cells.get((n, limit))) for limit in minutes})
        sections.append(f"### {title}\n\n![{title}: {metric} by number of {unit}](expectations-{task}.svg)\n\n{_markdown_table(rows)}")
    commands = ", ".join(dict.fromkeys(record["facts"]["processor"] for record in records))
    return "\n".join([*sections, f"One core of: {commands}; torch {records[0]['facts']['versions']['torch']}.\n"])


def _rounded(value: float) -> str:
    """Round to one decimal place, and values below 10 to two."""
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _describe_training(record: dict[str, Any] | None) -> str:
    """Return the size of the model, the steps and the time of a run, and why it ended."""
    if record is None:
        return ""
    size = next(part for part in record["model"].split(", ") if "parameters" in part)
    ended = {"patience": ", no longer improving", "max_steps": ", all steps of the recipe"}.get(record["ended"], "")
    return f"{size}, {record['steps']:,} steps in {record['seconds'] / 60:.1f} minutes{ended}"


def expectation_chart(records: Sequence[dict[str, Any]], task: str) -> str:
    """Return the chart of a task as an SVG file: one line per time limit over the number of examples."""
    of_task = sorted((record for record in records if record["task"] == task), key=lambda record: int(record["examples"]))
    limits = sorted({record["minutes"] for record in of_task})
    lines = [Line(f"{limit:g} minutes", [(r["examples"], r["value"]) for r in of_task if r["minutes"] == limit]) for limit in limits]
    return chart_svg_file(line_chart(of_task[0]["metric"], lines, x_label=of_task[0]["unit"], x_log=True))


def _markdown_table(rows: Sequence[dict[str, Any]]) -> str:
    names = list(rows[0])
    head = [name.replace("_", " ") for name in names]
    lines = [head, ["---"] * len(names), *([_cell(row[name]) for name in names] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _tables(result: dict[str, Any]) -> list[tuple[str, list[dict[str, Any]]]]:
    tables = [("Start-up time, seconds", result["start"])] if "start" in result else []
    tables += [(f"Training, {name}", rows) for name, rows in result.get("train", {}).items()]
    return tables + [(f"Translation, {name}", rows) for name, rows in result.get("decode", {}).items()]


def _cell(value: object) -> str:
    return f"{value:,.0f}" if isinstance(value, float) and value >= 100 else str(value)


def results_section(readme: str) -> str:
    """Return the results section of a page."""
    return readme.split(BEGIN, 1)[1].split(END, 1)[0]


def render_results() -> str:
    """Return the results section of benchmarks/README.md."""
    sections: list[tuple[Path, Callable[[Any], str]]] = [
        (TRANSLATION, translation_tables),
        *((path, partial(translation_tables, is_further=True)) for path in FURTHER_TRANSLATIONS),
        *((path, partial(multi30k_table, language)) for language, path in MULTI30K.items()),
        *((path, family_tables) for path in FAMILIES),
        *((path, budget_tables) for path in BUDGETS),
        *((path, path_tables) for path in TRAINING_PATHS),
        (LAYOUTS, layout_tables),
        (PATTERNS, pattern_tables),
        (COMPONENTS, component_tables),
        (GPU, gpu_table),
    ]
    return "\n".join(render(json.loads(path.read_text(encoding="utf-8"))) for path, render in sections if path.exists()) or NO_RESULTS


def main() -> None:
    """Update the results of all pages."""
    summary = summary_table(json.loads(TRANSLATION.read_text(encoding="utf-8")))
    for path, content in ((BENCHMARKS_README, render_results()), (README, summary)):
        _replace_results(path, content)
    records = json.loads(EXPECTATIONS.read_text(encoding="utf-8"))
    _replace_results(EXPECTATIONS_PAGE, expectation_tables(records))
    for task in dict.fromkeys(record["task"] for record in records):
        chart = expectation_chart(records, task)
        EXPECTATIONS_PAGE.with_name(f"expectations-{task}.svg").write_text(chart, encoding="utf-8")


def _replace_results(path: Path, content: str) -> None:
    """Replace the results section of a page."""
    page = path.read_text(encoding="utf-8")
    path.write_text(page.replace(BEGIN + results_section(page) + END, BEGIN + content + END), encoding="utf-8")


if __name__ == "__main__":
    main()
