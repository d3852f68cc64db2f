"""Entities and their F1 against seqeval."""

import pytest
import torch
from seqeval.metrics import classification_report, f1_score, precision_score, recall_score
from seqeval.metrics.sequence_labeling import get_entities

from transom.tasks.tagging.entities import entities_of, entity_scores


@pytest.mark.parametrize("prefixes", ["BI", "BIES"])
def test_entities_and_f1_equal_seqevals(prefixes: str) -> None:
    choices = ["O", "O", *(f"{prefix}-{label}" for prefix in prefixes for label in ("PER", "LOC", "x-y"))]
    drawn = torch.randint(len(choices), (2, 300, 9), generator=torch.Generator().manual_seed(2))
    drawn[1] = torch.where(torch.rand(300, 9, generator=torch.Generator().manual_seed(3)) < 0.8, drawn[0], drawn[1])
    known, found = ([[choices[i] for i in row] for row in side.tolist()] for side in drawn)
    for tags in known:
        assert [(label, start, end - 1) for label, start, end in entities_of(tags)] == get_entities(tags)
    whole, of_each = entity_scores(known, found)
    expected = precision_score(known, found), recall_score(known, found), f1_score(known, found)
    assert whole[1:] == pytest.approx(expected, abs=1e-12) and 0.3 < whole.f1 < 0.95
    report = classification_report(known, found, output_dict=True)
    for label, one in of_each.items():
        theirs = report[label]
        assert one == pytest.approx((theirs["support"], theirs["precision"], theirs["recall"], theirs["f1-score"]), abs=1e-12)
