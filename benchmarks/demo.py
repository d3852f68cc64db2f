"""The demo as the README shows it: `python -m benchmarks.demo` runs it, and writes transcript, time and picture anew.

docs/demo.json has what was printed, the seconds it took from start to end, and the machine; docs/alignment.svg is drawn from the same run.
"""

import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.measure import describe_environment
from transom.decoding.predictors.translator import Translator
from transom.inspection.alignment import Alignment, align
from transom.inspection.alignment_pictures import alignment_svg
from transom.inspection.markup import style_sheet, to_svg
from transom.planning.hardware import measure_peak
from transom.planning.precision import choose_threads
from transom.tasks.load import load_as

ROOT = Path(__file__).parents[1]
RECORD, PICTURE, FRONT_PAGE = ROOT / "docs" / "demo.json", ROOT / "docs" / "alignment.svg", ROOT / "README.md"
TRANSCRIPT_BLOCK = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""The transcript on the front page."""


def alignment_svg_file(alignment: Alignment) -> str:
    """Write the picture of an alignment as an SVG file of its own, which follows the reader's light or dark page."""
    picture = alignment_svg(alignment)
    picture.insert(0, style_sheet("colors", "pictures"))
    return to_svg(picture)


def main() -> None:
    """Run the demo in a fresh folder, as a person does, and write what it showed."""
    environment = describe_environment("python -m benchmarks.demo", choose_threads().count, measure_peak())
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        done = subprocess.run([sys.executable, "-m", "transom", "demo"], cwd=folder, capture_output=True, text=True, check=True)
        seconds = time.monotonic() - start
        transcript = done.stdout.strip("\n") + "\n"
        run = Path(folder) / "runs" / "phrasebook"
        translator = load_as(Translator, run)
        samples = re.findall(r"^  (\S.*)\n    -> (.*)$", transcript, re.MULTILINE)
        source, translation = max(samples, key=lambda sample: len(sample[1]))
        PICTURE.write_text(alignment_svg_file(align(translator.model, translator.tokenizers, source, translation)), encoding="utf-8")
    record = {"seconds": round(seconds, 1), "transcript": transcript, "facts": environment}
    RECORD.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    page = FRONT_PAGE.read_text(encoding="utf-8")
    FRONT_PAGE.write_text(TRANSCRIPT_BLOCK.sub(lambda _: f"```text\n{transcript}```", page, count=1), encoding="utf-8")
    print(transcript, f"{seconds:.1f} s", sep="\n")


if __name__ == "__main__":
    main()
