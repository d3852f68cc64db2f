"""Results as tables: `python -m benchmarks.tables` writes those of benchmarks/README.md and of the front page anew from results/."""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
RESULTS, README, FRONT_PAGE = FOLDER / "results" / "translation.json", FOLDER / "README.md", FOLDER.parent / "README.md"
FAMILIES, PATTERNS, BRICKS = (FOLDER / "results" / f"{name}.json" for name in ("families", "patterns", "components"))
LEARNING = {language: FOLDER / "results" / f"multi30k-{language}.json" for language in ("de", "fr")}
BEGIN, END = "<!-- results: written by python -m benchmarks.tables -->\n", "<!-- end of results -->\n"
NO_RESULTS = "Nothing is measured yet.\n"


def translation_tables(result: dict[str, Any]) -> str:
    """Lay a run's facts and tables out in Markdown."""
    facts = result["facts"]
    peak = ", ".join(f"{name} {rate:,} GFLOP/s" for name, rate in facts["matmul_gflops"].items())
    parts = [
        f"{facts['date']}; {facts['processor']}; {facts['cores']} cores, {facts['threads']} threads a system, load {facts['load_before']}"
        f" before; {', '.join(f'{name} {version}' for name, version in facts['versions'].items())}; `{facts['command']}`."
        f" Measured peak: {peak}; memory read {facts['read_gbytes']} GB/s.\n"
    ]
    parts += [f"### {title}\n\n{_markdown_table(rows)}" for title, rows in _tables(result)]
    return "\n".join(parts)


SUMMARY = {
    ("train", "transformer-base"): "training transformer-base, target tokens/s",
    ("train", "multi30k"): "training a Multi30k-sized model, target tokens/s",
    ("decode", "batch 32 beam 4"): "translating 32 sentences with 4 beams, tokens/s",
    ("decode", "batch 32 greedy"): "translating 32 sentences greedily, tokens/s",
    ("decode", "batch 1 greedy"): "translating one sentence, tokens/s",
}
"""The rows of the front page."""


def front_page_table(result: dict[str, Any]) -> str:
    """Lay out the best mode of transom and of the best peer, and the seconds of whole commands."""
    rows = []
    for (kind, name), what in SUMMARY.items():
        ours, theirs = (
            max((row for row in result[kind][name] if (row["system"] == "transom") == own), key=lambda row: float(row["tokens_per_second"]))
            for own in (True, False)
        )
        peer = f"{theirs['tokens_per_second']:,.0f}, {theirs['system']} {theirs['mode']}"
        rows.append({"What": what, "transom": f"{_with_quartiles(ours)}, {ours['mode']}", "Best peer": peer})
    for row in result["start"]:
        seconds = f"{row['seconds']:.2f} ({row['low']:.2f} to {row['high']:.2f})"
        rows.append({"What": f"`{row['command']}`, seconds", "transom": seconds, "Best peer": ""})
    facts = result["facts"]
    told = f"{facts['date']}, torch {facts['versions']['torch']}, `make bench`; medians and quartiles, best modes, in one run."
    return f"{told}\n\n{_markdown_table(rows)}"


def _with_quartiles(row: dict[str, Any]) -> str:
    return f"{row['tokens_per_second']:,.0f} ({row['low']:,.0f} to {row['high']:,.0f})"


def multi30k_table(language: str, records: Sequence[dict[str, Any]]) -> str:
    """Lay out what seeds learned from Multi30k, a row a seed, and their mean and spread."""
    figures = [name for name in records[0] if " at " in name]
    rows: list[dict[str, Any]] = [
        {"seed": record["seed"], **{name: record[name] for name in figures}, "steps": record["steps"], "minutes": record["minutes"]}
        for record in records
    ]
    if len(records) > 1:
        for name, summary in (("mean", statistics.fmean), ("spread", statistics.stdev)):
            values = {figure: round(summary([record[figure] for record in records]), 2) for figure in figures}
            rows.append({"seed": name, **values, "steps": "", "minutes": ""})
    commands = ", ".join(dict.fromkeys(f"`{record['facts']['command']}`" for record in records))
    threads = ", ".join(dict.fromkeys(str(record["facts"]["threads"]) for record in records))
    facts, target = records[0]["facts"], {"de": "German", "fr": "French"}[language]
    told = f"{facts['date']}; {facts['processor']}; {threads} threads or processes a run; {commands}; {records[0]['signature']}."
    return f"### Learning, Multi30k English to {target}, BLEU\n\n{told}\n\n{_markdown_table(rows)}"


def pattern_tables(result: dict[str, Any]) -> str:
    """Lay out what attention patterns cost beside full attention, a table a length."""
    facts, rows = result["facts"], result["rows"]
    told = (
        f"{facts['date']}; {facts['processor']}; {facts['threads']} threads, load {facts['load_before']} before; torch"
        f" {facts['versions']['torch']}; `{facts['command']}`. One layer of {result['shape']['n_heads']} heads of"
        f" {result['shape']['d_head']}, float32, one causal text; medians and quartiles."
    )
    parts = [f"### Attention patterns\n\n{told}\n"]
    for tokens in dict.fromkeys(row["tokens"] for row in rows):
        here = [row for row in rows if row["tokens"] == tokens]
        full = here[0]
        table = [
            {
                "pattern": row["pattern"],
                "way": row["way"],
                "visible_pairs": f"{row['visible_pairs']:,} ({row['visible_pairs'] / full['visible_pairs']:.1%})",
                **{
                    f"{what}, ms": f"{row[f'{key}_ms']:,.1f} ({row[f'{key}_ms_low']:,.1f} to {row[f'{key}_ms_high']:,.1f})"
                    for what, key in (("forward", "forward"), ("forward and back", "both"))
                },
                "of full": f"{row['both_ms'] / full['both_ms']:.2f}",
                "memory, MB": "" if row["both_bytes"] is None else f"{row['both_bytes'] / 1e6:,.0f}",
                "plan, ms": "" if row["plan_ms"] is None else f"{row['plan_ms']:,.1f}",
            }
            for row in here
        ]
        parts.append(f"#### {tokens:,} tokens\n\n{_markdown_table(table)}")
    return "\n".join(parts)


def component_tables(result: dict[str, Any]) -> str:
    """Lay out what each component costs and gains in a small model, a table a family, each beside its base."""
    facts, parts = result["facts"], list[str]()
    told = (
        f"{facts['date']}; {facts['processor']}; {facts['threads']} thread; torch {facts['versions']['torch']}; `{facts['command']}`. Short"
        " training, of one seed: what lies within what seeds alone change says nothing. A default's figures are its base's."
    )
    for family in dict.fromkeys(row["family"] for row in result["rows"]):
        here = [row for row in result["rows"] if row["family"] == family]
        base = next((row for row in here if row["names"][0] == "base"), None)
        table = [
            {
                "component": ", ".join(row["names"]) + (f": `{row['settings'][-1]}`" if "pattern=" in row["settings"][-1] else ""),
                "loss": f"{row['validation']['loss']:.3f}",
                "to base": f"{row['validation']['loss'] - base['validation']['loss']:+.3f}" if base else "",
                "accuracy": f"{row['validation']['accuracy']:.1f}" if "accuracy" in row["validation"] else "",
                "ms a step": f"{row['milliseconds_a_step']:.0f}",
                "parameters": f"{row['parameters']:,}",
            }
            for row in here
        ]
        losses = [row["validation"]["loss"] for row in here if row["names"][0].startswith("base")]
        seeds = f"; {len(losses)} seeds of the base within {max(losses) - min(losses):.3f} nats" if len(losses) > 1 else ""
        parts.append(f"#### {family}, {here[0]['n_steps']} steps{seeds}\n\n{_markdown_table(table)}")
    exits = [
        {"component": row["names"][0], **each, "lost": f"{each['loss'] - row['exits'][-1]['loss']:+.4f}"}
        for row in result["rows"]
        for each in row.get("exits", [])
    ]
    parts += (
        [f"#### Early exits by threshold: nats a token, and blocks that a token passed of 4\n\n{_markdown_table(exits)}"] if exits else []
    )
    return "\n".join([f"### Components\n\n{told}\n", *parts])


def family_tables(result: dict[str, Any]) -> str:
    """Lay out decoders, encoders and the Vision Transformer beside the transformers library's."""
    facts = result["facts"]
    told = (
        f"{facts['date']}; {facts['processor']}; {facts['threads']} threads a system, load {facts['load_before']} before; torch"
        f" {facts['versions']['torch']}, transformers {facts['versions']['transformers']}; `{facts['command']}`."
    )
    tables = [(f"{family}, {what}", rows) for family, works in result["families"].items() for what, rows in works.items()]
    return "\n".join([f"### Other families\n\n{told}\n", *(f"#### {title}\n\n{_markdown_table(rows)}" for title, rows in tables)])


def _markdown_table(rows: Sequence[dict[str, Any]]) -> str:
    names = list(rows[0])
    lines = [names, ["---"] * len(names), *([_cell(row[name]) for name in names] for row in rows)]
    return "".join(f"| {' | '.join(name.replace('_', ' ') for name in line)} |\n" for line in lines)


def _tables(result: dict[str, Any]) -> list[tuple[str, list[dict[str, Any]]]]:
    tables = [("Start, seconds", result["start"])] if "start" in result else []
    tables += [(f"Training, {name}", rows) for name, rows in result.get("train", {}).items()]
    return tables + [(f"Translating, {name}", rows) for name, rows in result.get("decode", {}).items()]


def _cell(value: object) -> str:
    return f"{value:,.0f}" if isinstance(value, float) and value >= 100 else str(value)


def results_section(readme: str) -> str:
    """Cut the results out of a page."""
    return readme.split(BEGIN, 1)[1].split(END, 1)[0]


def render_results() -> str:
    """Give what the README should show."""
    parts = [translation_tables(json.loads(RESULTS.read_text(encoding="utf-8")))] if RESULTS.exists() else []
    parts += [
        multi30k_table(language, json.loads(path.read_text(encoding="utf-8"))) for language, path in LEARNING.items() if path.exists()
    ]
    parts += [family_tables(json.loads(FAMILIES.read_text(encoding="utf-8")))] if FAMILIES.exists() else []
    parts += [pattern_tables(json.loads(PATTERNS.read_text(encoding="utf-8")))] if PATTERNS.exists() else []
    parts += [component_tables(json.loads(BRICKS.read_text(encoding="utf-8")))] if BRICKS.exists() else []
    return "\n".join(parts) or NO_RESULTS


def main() -> None:
    """Put the results into both pages."""
    for path, content in ((README, render_results()), (FRONT_PAGE, front_page_table(json.loads(RESULTS.read_text(encoding="utf-8"))))):
        page = path.read_text(encoding="utf-8")
        path.write_text(page.replace(BEGIN + results_section(page) + END, BEGIN + content + END), encoding="utf-8")


if __name__ == "__main__":
    main()
