"""The link check of a site: broken links and valid ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.report.laws import DOCS
from tools.links import broken


@pytest.mark.parametrize(
    ("html", "said"),
    [
        ('<a href="other.html">', "other.html does not exist"),
        ('<a class="x" href="sub/">', "sub/ does not exist"),
        ('<a href="#nowhere">', "#nowhere: no such anchor"),
        ('<a href="page.html#nowhere">', "page.html#nowhere: no such anchor"),
        (f'<a href="{DOCS}laws/none.html">', f"{DOCS}laws/none.html does not exist"),
        ('<script src="https://example.org/x.js">', "loads https://example.org/x.js"),
        ('<link rel="stylesheet" href="https://example.org/x.css">', "loads https://example.org/x.css"),
    ],
)
def test_what_is_broken(html: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(html)
    assert list(broken(tmp_path)) == [f"page.html: {said}"]


def test_what_is_not(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/index.html").write_text('<p id="a b">')
    links = ["sub/", "sub/index.html#a%20b", "#top", "https://example.org/x", "mailto:x@example.org"]
    (tmp_path / "page.html").write_text(
        '<p id="top"><img src="data:image/png;base64,">' + "".join(f'<a href="{one}">' for one in links)
    )
    assert list(broken(tmp_path)) == []
