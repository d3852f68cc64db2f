"""Writes the report ``report.html`` and the model card ``README.md`` of a finished run."""

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
"""Maximum number of alignments in the report, of translations of the last validation."""


def write_pages(parts: Parts, finished: Finished) -> list[str]:
    """Write the report and model card of a run from its setup, metrics and last event; return warnings about the training."""
    name = parts.folder.path.resolve().name
    facts = gather(name, parts.recipe, parts.facts, read_history(parts.folder.metrics), finished.seconds)
    parts.folder.load_weights(parts.validated)
    whole = replace(facts, alignments=_alignments(parts, facts.samples))
    parts.folder.write(REPORT, report(whole, getattr(parts.task, "report_sections", ())).encode())
    parts.folder.write(CARD, card(whole).encode())
    return whole.problems


def _alignments(parts: Parts, samples: Sequence[Mapping[str, str]]) -> list[Alignment]:
    """Align some of the validation samples, if the task supports it."""
    align = getattr(parts.task, "alignments", None)
    return [] if align is None else list(islice(align(parts.validated, samples), ALIGNED))
