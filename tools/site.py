"""MkDocs' hooks: adds pages from outside `docs` and a page for each law, and rewrites links.

Links in a page's source work in the repository. On the site they lead to the page that shows that file, or to the file
in the repository.

https://www.mkdocs.org/user-guide/plugins/#events
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from posixpath import dirname, join, normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tools import law_pages

ROOT = Path(__file__).parents[1]
#: By path in the repository, the source of a page of the site.
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "conformance/results/SCHEMA.md": "results.md",
    "conformance/trace/TRACE.md": "traces.md",
    "reports/README.md": "reports.md",
    "SKILL.md": "skill.md",
}
#: The page with a link for each adapter.
FRAMEWORKS = "docs/frameworks.md"
_ADAPTER = re.compile(r"\[(You use [^]]+)\]\(\.\./(conformance/frameworks/\w+\.py)\)")
_CODE = re.compile(r"^(```.*?^```$)|(`[^`\n]+`)", re.MULTILINE | re.DOTALL)
#: In the pages that list laws, an id that becomes a link to the page of the law.
_LAW = re.compile(r"^(\| |- )`(\w+/[\w-]+)`", re.MULTILINE)
_LINK = re.compile(r"\]\((?!\w+:|#)([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds what is not in `docs`: pages, adapters, published reports and findings, and a page for each law."""
    for id, text in law_pages.pages():
        files.append(File.generated(config, f"laws/{id}.md", content=text))
    titles = dict(reversed(found) for found in _ADAPTER.findall((ROOT / FRAMEWORKS).read_text()))
    for path, uri in _uris().items():
        if path in titles:
            file = File.generated(config, uri, content=adapter_page(titles[path], ROOT / path))
        elif path.startswith("reports/") and path.endswith(".html"):
            # A browser would show the source of a Markdown page.
            text = re.sub(r'(href="findings/\w+)\.md"', r'\1.html"', (ROOT / path).read_text())
            file = File.generated(config, uri, content=text)
        else:
            file = File.generated(config, uri, abs_src_path=str(ROOT / path))
        files.append(file)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page with the links of the site.

    Raises:
        FileNotFoundError: a link leads nowhere in the repository.
    """
    uris = {f"docs/{uri}": uri for uri in files.src_uris} | _uris()
    sources = {uri: path for path, uri in uris.items()}
    source = sources[page.file.src_uri]
    if source in ("docs/laws.md", "docs/properties.md"):
        markdown = _LAW.sub(r"\1[`\2`](laws/\2.md)", markdown)

    def link(found: re.Match[str]) -> str:
        path, anchor = normpath(join(dirname(source), found[1])), found[2] or ""
        if path in uris:
            return f"]({relpath(uris[path], dirname(page.file.src_uri))}{anchor})"
        if not (ROOT / path).exists():
            raise FileNotFoundError(f"{source}: the link to {found[1]} leads nowhere")
        return f"]({config.repo_url}/blob/main/{path}{anchor})"

    parts = _CODE.split(markdown)
    # Every third part, from the first on, is not code.
    return "".join(part if number % 3 else _LINK.sub(link, part) for number, part in enumerate(parts) if part)


def adapter_page(title: str, file: Path) -> str:
    """An adapter's docstring, the commands that run it, and its code."""
    source = file.read_text()
    module = ast.parse(source)
    # If there are several trainers, one is named.
    several = [ast.unparse(node.targets[0]) for node in module.body if isinstance(node, ast.Assign)]
    first = next((names.strip("()").split(",")[0] for names in several if "," in names), None)
    decorated = any(isinstance(node, ast.FunctionDef) and node.decorator_list for node in module.body)
    target = f"conformance.frameworks.{file.stem}" + ("" if decorated or first is None else f":{first}")
    return f"""# {title}

{ast.get_docstring(module)}

```sh
pip install "trainer-conformance[{file.stem.replace("_", "-")}]"
conformance run {target}
```

judges the release that you have installed, through this adapter. To judge your own code around the framework, copy the
file, replace the framework's calls with your code, and run `conformance run` on the copy.
[The adapter](../../docs/adapter.md) lists what a task offers, [the findings](../../docs/findings.md) what was found.

```python title="{file.relative_to(ROOT)}"
{source}```
"""


def _uris() -> dict[str, str]:
    """By path in the repository, the files outside `docs` that become files of the site."""
    return PAGES | {path: path for path in _reports()} | {path: _adapter_uri(path) for path in _adapters()}


def _reports() -> Iterator[str]:
    for pattern in ("*.html", "*.png", "findings/*.md", "findings/*.py"):
        yield from (str(path.relative_to(ROOT)) for path in sorted((ROOT / "reports").glob(pattern)))


def _adapters() -> list[str]:
    return [path for _, path in _ADAPTER.findall((ROOT / FRAMEWORKS).read_text())]


def _adapter_uri(path: str) -> str:
    return f"frameworks/{Path(path).stem}.md"
