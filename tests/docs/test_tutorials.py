"""The tutorials: each runs as it is printed, and its report has the sections that the page explains."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import Reader
from tests.size import ROOT
from tests.tiers import tiers

TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
EACH_CI = ("images", "language-model", "sounds", "text-classifier", "translator")
"""Tutorials that `make ci` runs; `make soak` runs the others."""


def section(page: str, title: str) -> str:
    """Return the text of a section of a page."""
    return re.split(r"^## ", page.split(f"\n## {title}\n")[1], flags=re.MULTILINE)[0]


@pytest.mark.parametrize("path", tiers(TUTORIALS, long=[path for path in TUTORIALS if path.stem in EACH_CI]), ids=lambda path: path.stem)
def test_a_tutorial_runs_as_it_is_printed(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    page = path.read_text(encoding="utf-8")
    Reader(tmp_path, monkeypatch, capfd).read(page)
    explained = section(page, "The report")
    (report,) = re.findall(r"`(runs/\w[\w-]*)/report\.html`", explained)
    html = (tmp_path / report / "report.html").read_text(encoding="utf-8")
    headings = {re.sub(r"<[^>]+>", "", heading) for heading in re.findall(r"<h2[^>]*>(.*?)</h2>", html)}
    assert set(re.findall(r"^- \*\*([^*]+)\*\*", explained, re.MULTILINE)) <= headings


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_goes_from_files_to_a_report_and_to_files_of_ones_own(path: Path) -> None:
    titles = re.findall(r"^## (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert titles[1] == "Train" and titles[-2] == "The report" and titles[-1].startswith("On your own ")
