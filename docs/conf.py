"""Settings with which Sphinx builds the site from the pages of this repository (``make site``).

The source folder is the repository, so that links between pages work on the site as they do in the files. The navigation is here and not
in the pages, which stay plain Markdown.
"""

import re
from pathlib import Path

from pygments.lexers import TextLexer
from sphinx.application import Sphinx

ROOT = Path(__file__).parent.parent
NAVIGATION = {
    "Users": (
        "README",
        "docs/install",
        "docs/guide",
        "docs/scaling-out",
        "docs/expectations",
        "docs/faq",
        "docs/troubleshooting",
        "docs/python",
    ),
    "Tutorials": tuple(
        f"docs/tutorials/{name}"
        for name in (
            "translator",
            "text-classifier",
            "images",
            "sounds",
            "language-model",
            "masked-language-model",
            "embeddings",
            "chat",
            "tagging",
        )
    ),
    "Reference": (
        "docs/config",
        "docs/components",
        "docs/presets",
        "docs/exchange",
        "docs/extending",
        "docs/security",
        "docs/names",
        "docs/worked-examples",
        "benchmarks/README",
        "CHANGELOG",
    ),
    "Design": ("docs/architecture", "docs/notation", "CONTRIBUTING"),
}
"""Pages of each part of the site, besides the first page; a test checks that none is missing."""

project = "transom"
author = "The transom authors"
project_copyright = "The transom authors, Apache-2.0"
release = re.findall(r'^__version__ = "(.*)"$', (ROOT / "transom" / "__init__.py").read_text(encoding="utf-8"), re.MULTILINE)[0]

root_doc = "docs/index"
include_patterns = ["docs/index.md", *(f"{page}.md" for pages in NAVIGATION.values() for page in pages), "log/*.md"]
suppress_warnings = ["toc.not_included", "myst.header"]  # the log's entries are reached by links, and are never edited
extensions = ["myst_parser"]
myst_heading_anchors = 4
smartquotes = False  # x' is a symbol, and quoted words are often to be typed

html_theme = "furo"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_title = f"transom {release}"
html_show_sourcelink = False
html_copy_source = False


def add_navigation(_app: Sphinx, page: str, source: list[str]) -> None:
    """Append the tables of contents to the first page; the theme shows them in the sidebar."""
    if page == root_doc:
        for caption, pages in NAVIGATION.items():
            listed = "\n".join("Read me first </README>" if page == "README" else f"/{page}" for page in pages)
            source[0] += f"\n```{{toctree}}\n:hidden:\n:titlesonly:\n:caption: {caption}\n\n{listed}\n```\n"


def write_first_page(app: Sphinx, error: Exception | None) -> None:
    """Write an ``index.html`` that leads from the site's folder to the first page."""
    if error is None:
        text = f'<!doctype html><meta charset="utf-8"><title>transom</title><meta http-equiv="refresh" content="0; url={root_doc}.html">'
        (Path(app.outdir) / "index.html").write_text(f'{text}<a href="{root_doc}.html">transom</a>\n', encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Register the two functions above, and the language of diagrams in the log, which are shown as text."""
    app.add_lexer("mermaid", TextLexer)
    app.connect("source-read", add_navigation)
    app.connect("build-finished", write_first_page)
