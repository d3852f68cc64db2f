"""docs/config.md says what the schema says."""

from tests.size import ROOT
from transom.config.reference import reference


def test_the_page_is_current() -> None:
    assert (ROOT / "docs" / "config.md").read_text(encoding="utf-8") == reference(), "run `make docs`"


def test_the_page_has_every_part_and_its_bounds() -> None:
    page = reference()
    assert "| `max_steps` | whole number, at least 1 | `20000` | optimizer steps |" in page
    assert '| `learning_rate` | number or `"paper"` |' in page
    assert "## `[training.optimizer]` of kind `adamw`" in page
    assert "## `[data.valid]`" in page
