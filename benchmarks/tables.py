"""Results as the tables of benchmarks/README.md: `python -m benchmarks.tables` writes them anew from results/translation.json."""

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS, README = HERE / "results" / "translation.json", HERE / "README.md"
BEGIN, END = "<!-- results: written by python -m benchmarks.tables -->\n", "<!-- end of results -->\n"
NOTHING = "Nothing is measured yet.\n"


def markdown(result: dict[str, Any]) -> str:
    """Lay a run's facts and tables out in Markdown."""
    facts = result["facts"]
    peak = ", ".join(f"{name} {rate:,} GFLOP/s" for name, rate in facts["matmul_gflops"].items())
    parts = [
        f"{facts['date']}; {facts['processor']}; {facts['cores']} cores, {facts['threads']} threads a system, load {facts['load_before']}"
        f" before; {', '.join(f'{name} {version}' for name, version in facts['versions'].items())}; `{facts['command']}`."
        f" Measured peak: {peak}; memory read {facts['read_gbytes']} GB/s.\n"
    ]
    for title, rows in _tables(result):
        names = list(rows[0])
        lines = [names, ["---"] * len(names), *([_cell(row[name]) for name in names] for row in rows)]
        parts.append(f"### {title}\n\n" + "".join(f"| {' | '.join(name.replace('_', ' ') for name in line)} |\n" for line in lines))
    return "\n".join(parts)


def _tables(result: dict[str, Any]) -> list[tuple[str, list[dict[str, Any]]]]:
    tables = [("Start, seconds", result["start"])] if "start" in result else []
    tables += [(f"Training, {name}", rows) for name, rows in result.get("train", {}).items()]
    return tables + [(f"Translating, {name}", rows) for name, rows in result.get("decode", {}).items()]


def _cell(value: object) -> str:
    return f"{value:,.0f}" if isinstance(value, float) and value >= 100 else str(value)


def section(readme: str) -> str:
    """Cut the results out of the README."""
    return readme.split(BEGIN, 1)[1].split(END, 1)[0]


def current() -> str:
    """Give what the README should show."""
    return markdown(json.loads(RESULTS.read_text(encoding="utf-8"))) if RESULTS.exists() else NOTHING


def main() -> None:
    """Put the results into the README."""
    readme = README.read_text(encoding="utf-8")
    README.write_text(readme.replace(BEGIN + section(readme) + END, BEGIN + current() + END), encoding="utf-8")


if __name__ == "__main__":
    main()
