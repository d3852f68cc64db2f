"""A hand calculation as JSON."""

import json
from collections.abc import Sequence
from typing import Any

from transom.inspection.explain.steps import Section

FORMAT_VERSION = 1
"""Version of the JSON format; it grows when a field changes its meaning."""


def render_data(title: str, settings: dict[str, Any], sections: Sequence[Section], summary: str, notes: Sequence[str]) -> dict[str, Any]:
    """Return a hand calculation as JSON-serializable data, with all operands."""
    content = [section.data() for section in sections]
    return {
        "format_version": FORMAT_VERSION,
        "title": title,
        "settings": settings,
        "notes": list(notes),
        "summary": summary,
        "sections": content,
    }


def render_json(data: dict[str, Any]) -> str:
    """Return data as a line of JSON; infinity is text in it."""
    return json.dumps(data, ensure_ascii=False, allow_nan=False) + "\n"
