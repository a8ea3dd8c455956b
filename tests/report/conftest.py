"""A synthetic run with every verdict, its page, and the elements of a page."""

from __future__ import annotations

from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from conformance.report.html import render_html
from conformance.results import Results

from ..results.conftest import cases, hostile, one_case, read, results, results_file
from ..results.regression import Case

__all__ = ["cases", "hostile", "html", "one_case", "page", "read", "results", "results_file"]
VOID = {"meta", "path", "rect", "use", "circle", "br", "input"}


class Node:
    """An element with its attributes, and its children and texts in order."""

    def __init__(self, tag: str, attributes: dict[str, str], parent: Node | None) -> None:
        self.tag, self.attributes, self.parent = tag, attributes, parent
        self.parts: list[str | Node] = []

    @property
    def children(self) -> list[Node]:
        return [part for part in self.parts if isinstance(part, Node)]

    def all(self) -> list[Node]:
        return [self, *(inner for child in self.children for inner in child.all())]

    @property
    def raw(self) -> str:
        """The text that a reader sees."""
        if self.tag in ("script", "style"):
            return ""
        return "".join(part if isinstance(part, str) else part.raw for part in self.parts)

    @property
    def text(self) -> str:
        return " ".join(self.raw.split())

    @property
    def ancestors(self) -> list[Node]:
        return [] if self.parent is None else [self.parent, *self.parent.ancestors]


class Page(HTMLParser):
    """The elements of a page; fails on an element that is not closed in order."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.at = self.root = Node("", {}, None)
        self.feed(content)
        self.close()
        assert self.at is self.root
        self.nodes = self.root.all()
        self.tags = [node.tag for node in self.nodes]
        self.attributes = [pair for node in self.nodes for pair in node.attributes.items()]
        self.text = self.root.raw

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        node = Node(tag, {name: value or "" for name, value in attrs}, self.at)
        self.at.parts.append(node)
        if tag not in VOID:
            self.at = node

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.at.parts.append(Node(tag, {name: value or "" for name, value in attrs}, self.at))

    def handle_endtag(self, tag: str) -> None:
        assert self.at.parent is not None and self.at.tag == tag
        self.at = self.at.parent

    def handle_data(self, data: str) -> None:
        self.at.parts.append(data)


@pytest.fixture(scope="module")
def html(results: Results, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of the whole run."""
    path = tmp_path_factory.mktemp("page") / "report.html"
    render_html(results, path)
    return path.read_text(encoding="utf-8")


@pytest.fixture
def page(read: Callable[..., Results], tmp_path: Path) -> Callable[..., str]:
    """The HTML of a run with these cases."""

    def rendered(cases: list[Case], planned: int | None = None) -> str:
        render_html(read(cases, planned), tmp_path / "report.html")
        return (tmp_path / "report.html").read_text(encoding="utf-8")

    return rendered
