"""The two pages that a finished run leaves for people: ``report.html`` and the model card ``README.md``."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from transom.errors import DataError
from transom.inspection.alignment import Alignment, align
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
    whole = gather(parts.recipe, facts.metrics, started, finished, list(islice(_alignments(parts, facts.samples), ALIGNED)))
    parts.folder.write(REPORT, report(whole).encode())
    parts.folder.write(CARD, card(whole).encode())


def _alignments(parts: Parts, samples: Iterable[Mapping[str, str]]) -> Iterator[Alignment]:
    """Align the translations that are not empty; what was translated in pieces is too long to be aligned as a whole."""
    for sample in samples:
        if sample["translation"].strip():
            try:
                yield align(parts.validated, parts.tokenizers, sample["source"], sample["translation"])
            except DataError:
                continue
