"""Checks that every link and resource of a folder's pages is in that folder, anchors included, and nothing else loads.

python tools/links.py build/site
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit

from conformance.report.laws import DOCS

_ATTRIBUTE = re.compile(r'<(\w+)[^<>]*?\s(href|src)="([^"]*)"')
_ID = re.compile(r'\s(?:id|name)="([^"]+)"')


def broken(folder: Path) -> Iterator[str]:
    """Yields a line for each broken link, and for each resource that a page would load over a network."""
    for page in sorted(folder.rglob("*.html")):
        # The page for unknown paths is shown at any path.
        if page.name != "404.html":
            for tag, attribute, target in sorted(set(_ATTRIBUTE.findall(page.read_text(encoding="utf-8")))):
                reason = _reason(folder, page, tag, attribute, unescape(target))
                if reason is not None:
                    yield f"{page.relative_to(folder)}: {reason}"


def _reason(folder: Path, page: Path, tag: str, attribute: str, target: str) -> str | None:
    # Reports link to the published documentation.
    is_docs = tag == "a" and target.startswith(DOCS)
    base, own = (folder, target.removeprefix(DOCS)) if is_docs else (page.parent, target)
    parts = urlsplit(own)
    if parts.scheme or parts.netloc:
        loads = attribute == "src" or tag == "link"
        return f"loads {target}" if loads and parts.scheme != "data" else None
    file = base / unquote(parts.path) if parts.path else page
    if not (file / "index.html" if file.is_dir() else file).exists():
        return f"{target} does not exist"
    anchor = unquote(parts.fragment)
    if anchor and file.suffix == ".html" and anchor not in _anchors(file.resolve()):
        return f"{target}: no such anchor"
    return None


@cache
def _anchors(file: Path) -> set[str]:
    return {unescape(found) for found in _ID.findall(file.read_text(encoding="utf-8"))}


if __name__ == "__main__":
    lines = list(broken(Path(sys.argv[1])))
    print(*lines, f"{len(lines)} broken links", sep="\n")
    sys.exit(bool(lines))
