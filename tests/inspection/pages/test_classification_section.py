"""The section on a classifier: readable with many classes, and text from data stays text."""

import numpy as np
import pytest

from tests.inspection.conftest import HOSTILE
from transom.data.pairs.pairs import Pairs
from transom.decoding.predictors.class_metrics import CalibrationBin, ClassificationMetrics, evaluate_probabilities
from transom.inspection.pages.classification_pictures import MAX_OPACITY, SIZE, TOP, confusion_matrix_svg, reliability_diagram
from transom.inspection.pages.classification_section import MAX_CLASSES, class_table, class_table_title, classification_page, confused_table
from transom.inspection.pages.markup import to_svg


def metrics(n_classes: int, name: str = "class {}") -> ClassificationMetrics:
    """Return metrics of random predictions, three per class."""
    draw = np.random.default_rng(1)
    classes = tuple(name.format(k) for k in range(n_classes))
    labels = [k for k in range(n_classes) for _ in range(3)]
    p = draw.dirichlet([1.0] * n_classes, len(labels))
    texts = [f"{HOSTILE} {i} " + "long " * 500 for i in range(len(labels))]
    return evaluate_probabilities(p, labels, Pairs(texts, [classes[k] for k in labels], "here"), classes, texts)


def test_many_classes_stay_readable() -> None:
    found = metrics(300)
    assert len(class_table(found)[1]) == MAX_CLASSES + 2 and "50 of 300 classes with the lowest F1" in class_table_title(found)
    assert len(confused_table(found)[1]) == 10
    page = classification_page("run", "data.tsv", "texts", found)
    assert len(page) < 100_000 and 'class="confusion"' not in page and "Most confused classes" in page


def test_text_from_data_stays_text() -> None:
    page = classification_page(HOSTILE, HOSTILE, "texts", metrics(4, HOSTILE.replace("{", "").replace("}", "") + "{}"))
    assert 'class="confusion"' in page and 'class="reliability"' in page
    assert page.count("<script") == 2 and "<img" not in page and "\x1b" not in page and "\u202e" not in page


def test_bars_reach_the_accuracy() -> None:
    bins = [CalibrationBin(0.6, 0.8, 10, 0.7, 0.25), CalibrationBin(0.8, 1.0, 4, 0.9, 1.0)]
    picture = reliability_diagram(bins)
    heights = [float(each.get("height", "")) for each in picture.iter("rect")]
    assert heights == [pytest.approx(0.25 * SIZE), pytest.approx(SIZE)]
    assert float(next(each for each in picture.iter("circle")).get("cy", "")) == pytest.approx(TOP + 0.75 * SIZE)
    assert "accuracy 25.0% at a mean confidence of 70.0%, 10 predictions" in to_svg(picture)


def test_a_cell_is_as_dark_as_its_fraction_of_the_row() -> None:
    picture = confusion_matrix_svg(["a", "b"], {("a", "a"): 3, ("a", "b"): 1, ("b", "b"): 2})
    cells = [each for each in picture.iter("rect") if each.get("class") == "cell"]
    assert [float(each.get("fill-opacity", "")) for each in cells] == [round(MAX_OPACITY * fraction, 3) for fraction in (0.75, 0.25, 1)]
