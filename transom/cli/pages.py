"""The two pages that a finished run leaves for people: ``report.html`` and the model card ``README.md``."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice

from transom.checkpoints.run_files import CARD, REPORT
from transom.errors import DataError
from transom.inspection.alignment import Alignment, align, cross_attentions
from transom.inspection.card import card
from transom.inspection.facts import gather
from transom.inspection.report import report
from transom.models.network import Seq2SeqNetwork
from transom.training.events import Finished
from transom.training.record import read_history
from transom.training.setup import Parts
from transom.training.tasks.translation import TranslationTask

ALIGNED = 2
"""Translations of the last validation of which the report shows the alignment."""


def write_pages(parts: Parts, finished: Finished) -> list[str]:
    """Write the report and the card of a run, from what was known before it, its metrics and its last event; return its problems."""
    name = parts.folder.path.resolve().name
    facts = gather(name, parts.recipe, parts.facts, read_history(parts.folder.metrics), finished.seconds)
    parts.folder.load_weights(parts.validated)
    whole = replace(facts, alignments=list(islice(_alignments(parts, facts.samples), ALIGNED)))
    parts.folder.write(REPORT, report(whole, getattr(parts.task, "report_sections", ())).encode())
    parts.folder.write(CARD, card(whole).encode())
    return whole.problems


def _alignments(parts: Parts, samples: Iterable[Mapping[str, str]]) -> Iterator[Alignment]:
    """Align the translations that are not empty; what was translated in pieces is too long to be aligned as a whole."""
    if not (isinstance(parts.task, TranslationTask) and isinstance(parts.validated, Seq2SeqNetwork) and cross_attentions(parts.validated)):
        return
    for sample in samples:
        if sample["translation"].strip():
            try:
                yield align(parts.validated, parts.task.tokenizers, sample["source"], sample["translation"], to=sample.get("to"))
            except DataError:
                continue
