"""docs/exchange.md: it runs as it is printed, and its table is that of the families."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import Reader
from tests.size import ROOT
from transom.exchange.family import TASKS, all_families

PAGE = (ROOT / "docs" / "exchange.md").read_text(encoding="utf-8")


def test_the_table_has_every_family_and_its_task() -> None:
    rows = re.findall(r"^\| ([a-z0-9_]+) \| ([A-Z]\w+) \| ([a-z-]+) \|", PAGE, re.MULTILINE)
    assert rows == [(family.model_type, family.architecture, TASKS[family.kind]) for family in all_families()]


@pytest.mark.long
def test_the_page_runs_as_it_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    Reader(tmp_path, monkeypatch, capfd).read(PAGE)
