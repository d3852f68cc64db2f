"""A page that works without a server: one HTML file with the modules, styles, messages and the answers to some requests."""

import base64
import json
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any

from transom.inspection.messages.tables import LANGUAGES, table

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'unsafe-inline' data:",
        "style-src 'unsafe-inline'",
        "img-src data: blob:",
        "base-uri 'none'",
        "form-action 'none'",
    )
)
"""Content security policy of an exported file, which contains its scripts and contacts no host."""

PAGE = resources.files(__package__) / "page"
"""Folder of the page."""


def export_page(answers: Mapping[str, Any], state: Mapping[str, Any], language: str) -> str:
    """Return the page as one HTML file.

    Args:
        answers: answers by the key of their request, as ``request_key`` writes it.
        state: state of the page.
        language: language of the page.
    """
    html = (PAGE / "index.html").read_text("utf-8")
    modules = {path.name.removesuffix(".js"): path.read_text("utf-8") for path in PAGE.iterdir() if path.name.endswith(".js")}
    imports = {f"explore/{name}": _data_url("text/javascript", source) for name, source in sorted(modules.items())}
    html = _replace(r'<script type="importmap"[^>]*>.*?</script>', f'<script type="importmap">{_json({"imports": imports})}</script>', html)
    html = re.sub(
        r'<link rel="stylesheet" href="([\w.-]+)"\s*/?>',
        lambda found: f"<style>{(PAGE / found[1]).read_text('utf-8')}</style>",
        html,
    )
    html = _replace(r'<script type="module" src="app\.js"></script>', '<script type="module">import "explore/app";</script>', html)
    data = {"answers": answers, "state": state, "language": language, "messages": {name: table(name)["explore"] for name in LANGUAGES}}
    blocks = "".join(f'<script type="application/json" id="{name}">{_json(value)}</script>' for name, value in data.items())
    policy = f'<meta http-equiv="Content-Security-Policy" content="{CONTENT_SECURITY_POLICY}">'
    return _replace(r"</head>", f"{policy}{blocks}</head>", html)


def _replace(pattern: str, new: str, text: str) -> str:
    """Replace the only match of a pattern."""
    found, n = re.subn(pattern, lambda _: new, text, flags=re.DOTALL)
    assert n == 1, f"index.html has {n} matches of {pattern}"
    return found


def _json(value: Any) -> str:
    """Return JSON that may stand in a script element."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")


def _data_url(kind: str, text: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(text.encode()).decode()}"
