"""The two pages that a finished run leaves for people: ``report.html`` and the model card ``README.md``."""

from transom.inspection.alignment import align
from transom.inspection.card import card
from transom.inspection.facts import gather
from transom.inspection.report import report
from transom.training.events import Finished, Started
from transom.training.setup import Parts
from transom.weights.run_folder import CARD, REPORT

ALIGNED = 2
"""Translations of the last validation of which the report shows the alignment."""


def write_pages(parts: Parts, started: Started, finished: Finished) -> None:
    """Write the report and the card of a run, from its first and last event and its metrics."""
    facts = gather(parts.recipe, parts.folder.metrics.read(), started, finished)
    parts.folder.load_weights(parts.validated)
    shown = [sample for sample in facts.samples if sample["translation"].strip()][:ALIGNED]
    alignments = [align(parts.validated, parts.tokenizers, sample["source"], sample["translation"]) for sample in shown]
    whole = gather(parts.recipe, facts.metrics, started, finished, alignments)
    parts.folder.write(REPORT, report(whole).encode())
    parts.folder.write(CARD, card(whole).encode())
