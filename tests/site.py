"""Check the links of a built site: ``python -m tests.site FOLDER`` (``make site``).

Each link to another file of the site must lead to a file, and to an element with that id if it names one. Pages load nothing from
elsewhere, so that the site works without a network.
"""

import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

LOADED = {"img": "src", "script": "src", "link": "href", "iframe": "src", "source": "src"}
"""Elements that load another file, and the attribute that names it."""


class Page(NamedTuple):
    """The links of a page.

    Attributes:
        ids: ids of its elements.
        links: targets of its links.
        loaded: files that a browser loads with the page.
    """

    ids: set[str]
    links: set[str]
    loaded: set[str]


class PageParser(HTMLParser):
    """Collect a page's ids, links and loaded files."""

    def __init__(self) -> None:
        """Start with an empty page."""
        super().__init__()
        self.page = Page(set(), set(), set())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Read one element."""
        values = {name: value for name, value in attrs if value is not None}
        self.page.ids.update(values[name] for name in ("id", "name") if name in values)
        if tag == "a" and "href" in values:
            self.page.links.add(values["href"])
        if tag in LOADED and LOADED[tag] in values:
            self.page.loaded.add(values[LOADED[tag]])


def read_page(path: Path) -> Page:
    """Parse a page."""
    parser = PageParser()
    parser.feed(path.read_text(encoding="utf-8"))
    return parser.page


def faults(folder: Path) -> Iterator[str]:
    """Yield one line per broken link or file loaded from elsewhere."""
    pages = {path.resolve(): read_page(path) for path in sorted(folder.rglob("*.html"))}
    for path, page in pages.items():
        name = path.relative_to(folder.resolve())
        for target in sorted(page.links | page.loaded):
            scheme, host, file, _, fragment = urlsplit(target)
            if scheme == "data":
                continue
            if scheme or host:
                if target in page.loaded:
                    yield f"{name}: loads {target} from elsewhere"
                continue
            goal = (path.parent / unquote(file)).resolve() if file else path
            if not goal.is_file():
                yield f"{name}: no file {target}"
            elif fragment and goal in pages and unquote(fragment) not in pages[goal].ids:
                yield f"{name}: no element {target}"


def main(folder: Path) -> int:
    """Print the faults of a site; return 1 if there are any or if the folder has no pages."""
    found = list(faults(folder))
    n_pages = len(list(folder.rglob("*.html")))
    print(*found, f"site: {n_pages} pages, {len(found)} broken links", sep="\n")
    return bool(found) or not n_pages


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
