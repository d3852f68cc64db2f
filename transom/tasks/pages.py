"""The two pages that a finished run leaves for people: ``report.html`` and the model card ``README.md``."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice

from transom.checkpoints.run_files import CARD, REPORT
from transom.decoding.predictors.results import Alignment
from transom.inspection.card import card
from transom.inspection.facts import gather
from transom.inspection.report import report
from transom.training.events import Finished
from transom.training.record import read_history
from transom.training.setup import Parts

ALIGNED = 2
"""Translations of the last validation of which the report shows the alignment."""


def write_pages(parts: Parts, finished: Finished) -> list[str]:
    """Write the report and the card of a run, from what was known before it, its metrics and its last event; return its problems."""
    name = parts.folder.path.resolve().name
    facts = gather(name, parts.recipe, parts.facts, read_history(parts.folder.metrics), finished.seconds)
    parts.folder.load_weights(parts.validated)
    whole = replace(facts, alignments=_alignments(parts, facts.samples))
    parts.folder.write(REPORT, report(whole, getattr(parts.task, "report_sections", ())).encode())
    parts.folder.write(CARD, card(whole).encode())
    return whole.problems


def _alignments(parts: Parts, samples: Sequence[Mapping[str, str]]) -> list[Alignment]:
    """Align some of the answers, where the task can."""
    align = getattr(parts.task, "alignments", None)
    return [] if align is None else list(islice(align(parts.validated, samples), ALIGNED))
