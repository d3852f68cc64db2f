"""Print lines a file and a room; warn over 300 lines a file, fail over 500 (``make size``)."""

import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parent.parent
WARN, FAIL = 300, 500


def lines_of_files(root: Path = ROOT) -> dict[Path, int]:
    """Count the lines of every Python file of the package and its tests, by path from ``root``."""
    files = sorted(path for folder in ("transom", "tests", "benchmarks") for path in (root / folder).rglob("*.py"))
    return {path.relative_to(root): path.read_text(encoding="utf-8").count("\n") for path in files}


def main() -> int:
    """Print the table; 1 if a file is too long."""
    counts = lines_of_files()
    rooms: dict[str, dict[Path, int]] = defaultdict(dict)
    for path, lines in counts.items():
        rooms["/".join(path.parts[:2]) if len(path.parts) > 2 else path.parts[0]][path] = lines
    for room, files in rooms.items():
        print(f"{sum(files.values()):6}  {room}")
        for path, lines in files.items():
            print(f"{lines:12}  {path.name}{'  over 300' if lines > WARN else ''}")
    package = sum(lines for path, lines in counts.items() if path.parts[0] == "transom")
    print(f"{sum(counts.values()):6}  in all, {package} of them in transom/")
    too_long = [f"{path}: {lines} lines, the limit is {FAIL}" for path, lines in counts.items() if lines > FAIL]
    print(*too_long, sep="\n", end="\n" if too_long else "")
    return bool(too_long)


if __name__ == "__main__":
    sys.exit(main())
