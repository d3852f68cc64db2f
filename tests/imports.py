"""Print the import graph of the package: rooms, levels, arrows, cycles and the largest files (``python -m tests.imports [ROOT]``)."""

import ast
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

Graph = dict[str, set[str]]


def modules(root: Path) -> dict[str, Path]:
    """Return every module of ``root``/transom by its dotted name, packages by the name of their folder."""
    files = sorted((root / "transom").rglob("*.py"))
    return {".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): file for file in files}


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield the dotted names that a module imports, ``from a import b`` as both ``a`` and ``a.b``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def import_graph(files: Mapping[str, Path]) -> Graph:
    """Return the modules that each module imports; a package's own file is left out where one of its modules is named."""
    graph = {}
    for name, file in files.items():
        names = set(imported(ast.parse(file.read_text(encoding="utf-8")))) & set(files)
        graph[name] = {each for each in names - {name} if not any(other.startswith(f"{each}.") for other in names)}
    return graph


def cycles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return the strongly connected components of two nodes or more (Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            component = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(component) > 1:
                found.append(sorted(component))

    for node in graph:
        if node not in index:
            visit(node)
    return found


def room(module: str) -> str:
    """Return the package of a module directly below ``transom``; the package's own files are the entry point."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] != "__main__" else "entry"


def levels(graph: Mapping[str, Iterable[str]]) -> dict[str, int]:
    """Return the length of the longest chain of imports below each node of a graph without cycles."""
    known: dict[str, int] = {}

    def level(node: str) -> int:
        if node not in known:
            known[node] = 1 + max((level(other) for other in graph[node]), default=-1)
        return known[node]

    return {node: level(node) for node in graph}


def report(root: Path) -> Iterator[str]:
    """Yield the report as Markdown, the arrows between rooms as a Mermaid drawing."""
    files = modules(root)
    graph = import_graph(files)
    arrows = Counter((room(module), room(other)) for module, others in graph.items() for other in others if room(module) != room(other))
    rooms: Graph = {room(module): set() for module in files}
    for one, other in arrows:
        rooms[one].add(other)
    lines = {name: file.read_text(encoding="utf-8").count("\n") for name, file in files.items()}
    knots = cycles(rooms)
    tangled = {name for knot in knots for name in knot}
    loose = {name: others - tangled for name, others in rooms.items() if name not in tangled}
    yield f"{len(files)} files, {sum(lines.values()):,} lines, {sum(map(len, graph.values())):,} imports\n"
    yield "| level | room | files | lines | imports of | imported by |\n| --- | --- | --- | --- | --- | --- |"
    for name, level in sorted(levels(loose).items(), key=lambda item: (item[1], item[0])):
        inside = [module for module in files if room(module) == name]
        into, out = (sum(n for arrow, n in arrows.items() if arrow[side] == name) for side in (1, 0))
        yield f"| {level} | {name} | {len(inside)} | {sum(lines[module] for module in inside):,} | {out} | {into} |"
    yield f"\nCycles of rooms: {'; '.join(map(', '.join, knots)) or 'none'}"
    yield f"\nCycles of modules: {'; '.join(map(', '.join, cycles(graph))) or 'none'}"
    yield "\nLargest files: " + ", ".join(f"{name} {lines[name]}" for name in sorted(lines, key=lambda name: -lines[name])[:12])
    flat = Counter(file.parent for file in files.values())
    yield "\nLargest folders: " + ", ".join(f"{folder.relative_to(root)} {n}" for folder, n in flat.most_common(8))
    yield "\n```mermaid\ngraph TD"
    yield from (f"  {one} -->|{n}| {other}" for (one, other), n in sorted(arrows.items()))
    yield "```"


if __name__ == "__main__":
    print(*report(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent.parent), sep="\n")
