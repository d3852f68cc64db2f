"""The files that a step and a translation enter: as few as we aim at, and those that docs/architecture.md lists."""

import re
from pathlib import Path

import pytest
import torch

from benchmarks.executed_files import files_of_training_step, files_of_translation
from tests.size import ROOT
from transom.decoding.backends.native_decoder import decoder_step_library
from transom.kernels import linear
from transom.layers.dispatch import kernels_of
from transom.planning.precision import choose_precision

MOST_OF_A_STEP, MOST_OF_A_TRANSLATION = 25, 20


def listed(column: int) -> set[str]:
    """Read the files in a column of the page's table."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").split("### Files to open")[1].split("\n## ")[0]
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| ")]
    return {file for row in rows for file in re.findall(r"`([\w/]+\.py)`", row[column])}


def test_a_step_and_a_translation_enter_the_files_that_the_page_lists(tmp_path: Path) -> None:
    bfloat16 = choose_precision("auto", torch.device("cpu")).name == "bf16"
    if not bfloat16 or not kernels_of("relu") or decoder_step_library()[0] is None or not linear.has_bfloat16_products():
        pytest.skip("the page lists what a processor with AVX-512 and bfloat16 instructions enters, by the kernels")
    step, translation = files_of_training_step(tmp_path / "run"), files_of_translation(tmp_path / "run")
    assert step == listed(2)
    assert translation == listed(3)
    assert len(step) <= MOST_OF_A_STEP
    assert len(translation) <= MOST_OF_A_TRANSLATION
