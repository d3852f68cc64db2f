"""Run the demo and update its transcript and picture in the README: `python -m benchmarks.demo`.

docs/demo.json records the output, the seconds of the whole process and the machine. docs/alignment.svg shows an alignment of the same run.
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
from transom.inspection.pages.alignment_pictures import alignment_svg
from transom.inspection.pages.markup import style_sheet, to_svg
from transom.planning.hardware import measure_peak
from transom.planning.precision import choose_threads
from transom.tasks.load import load

ROOT = Path(__file__).parents[1]
RECORD, PICTURE, README = ROOT / "docs" / "demo.json", ROOT / "docs" / "alignment.svg", ROOT / "README.md"
TRANSCRIPT_BLOCK = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""The beginning of the transcript in the README, without the alignment, which the README shows as a picture."""


def alignment_svg_file(alignment: Alignment) -> str:
    """Return an alignment as a standalone SVG file that adapts to light and dark color schemes."""
    picture = alignment_svg(alignment)
    picture.insert(0, style_sheet("colors", "pictures"))
    return to_svg(picture)


def main() -> None:
    """Run the demo in an empty folder, as a new user does, and write its transcript and picture."""
    environment = describe_environment("python -m benchmarks.demo", choose_threads().count, measure_peak())
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        done = subprocess.run([sys.executable, "-m", "transom", "demo"], cwd=folder, capture_output=True, text=True, check=True)
        seconds = time.monotonic() - start
        transcript = done.stdout.strip("\n") + "\n"
        run = Path(folder) / "runs" / "phrasebook"
        translator = load(run, kind=Translator)
        samples = re.findall(r"^  (\S.*)\n    -> (.*)$", transcript, re.MULTILINE)
        source, translation = max(samples, key=lambda sample: len(sample[1]))
        PICTURE.write_text(alignment_svg_file(align(translator.model, translator.tokenizers, source, translation)), encoding="utf-8")
    record = {"seconds": round(seconds, 1), "transcript": transcript, "facts": environment}
    RECORD.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    page, (beginning, _, _) = README.read_text(encoding="utf-8"), transcript.partition("\nCross-attention of ")
    README.write_text(TRANSCRIPT_BLOCK.sub(lambda _: f"```text\n{beginning}```", page, count=1), encoding="utf-8")
    print(transcript, f"{seconds:.1f} s", sep="\n")


if __name__ == "__main__":
    main()
