"""Print lines of code per file and per package; warn above 300 lines per file, fail above 500 (``make size``)."""

import ast
import io
import sys
import tokenize
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parent.parent
WARN, FAIL = 300, 500
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def python_files(root: Path = ROOT) -> list[Path]:
    """List the Python files of the package, its tests and benchmarks, relative to ``root``."""
    folders = ("transom", "tests", "benchmarks")
    return [path.relative_to(root) for folder in folders for path in sorted((root / folder).rglob("*.py"))]


def lines_of_files(root: Path = ROOT) -> dict[Path, int]:
    """Count all lines of every Python file."""
    return {path: (root / path).read_text(encoding="utf-8").count("\n") for path in python_files(root)}


def lines_of_code(source: str) -> int:
    """Count the lines that hold code: not empty, not a comment, not part of a docstring."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else []:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant) and isinstance(statement.value.value, str):
                docstrings.update(range(statement.lineno, (statement.end_lineno or statement.lineno) + 1))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return len({n for token in tokens if token.type not in NO_CODE for n in range(token.start[0], token.end[0] + 1)} - docstrings)


def main() -> int:
    """Print the table; return 1 if a file is too long."""
    counts = lines_of_files()
    code = {path: lines_of_code((ROOT / path).read_text(encoding="utf-8")) for path in counts}
    packages: dict[str, list[Path]] = defaultdict(list)
    for path in counts:
        packages["/".join(path.parts[:2]) if len(path.parts) > 2 else path.parts[0]].append(path)
    print("  code   lines")
    for package, files in packages.items():
        print(f"{sum(code[path] for path in files):6}{sum(counts[path] for path in files):8}  {package}")
        for path in files:
            print(f"{code[path]:12}{counts[path]:8}  {path.name}{'  over 300' if counts[path] > WARN else ''}")
    ours = [path for path in counts if path.parts[0] == "transom"]
    print(f"{sum(code.values()):6}{sum(counts.values()):8}  total")
    print(f"{sum(code[path] for path in ours):6}{sum(counts[path] for path in ours):8}  transom/")
    too_long = [f"{path}: {lines} lines, the limit is {FAIL}" for path, lines in counts.items() if lines > FAIL]
    print(*too_long, sep="\n", end="\n" if too_long else "")
    return bool(too_long)


if __name__ == "__main__":
    sys.exit(main())
