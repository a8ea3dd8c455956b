"""Reports of runs and of watches in a browser: what axe-core finds, and that nothing is too wide or too small.

`nox -s browser` runs it. It needs Chromium or Chrome on PATH, and `AXE`, the path of axe-core's axe.min.js.
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from conformance.report.html import render_html
from conformance.results import read_results
from conformance.watch.judging.findings import Findings, said
from conformance.watch.report.watch_page import page

from ..results import synthetic
from ..watch.scripts import accused

NAMES = ("chromium", "chromium-browser", "google-chrome")
#: Of Chromium's setting preferredColorScheme.
THEMES = {"dark": 0, "light": 1}

#: Runs in the page, in a frame: its width is that of a phone, which no window can have.
INSPECT = """
for (const one of document.querySelectorAll("details")) one.open = true;
const page = document.documentElement;
const size = (one) => parseFloat(getComputedStyle(one).fontSize);
const shown = (selector) => [...document.querySelectorAll(selector)].filter((one) => one.checkVisibility());
const hasText = (one) => [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
const sizes = shown("main *").filter(hasText).map(size);
// Text of a figure grows with it.
const figures = shown("svg.fig").map((one) => size(one) * one.clientWidth / one.viewBox.baseVal.width);
axe.run(document, { resultTypes: ["violations"] }).then((found) => parent.postMessage(JSON.stringify({
  violations: found.violations.map((one) => [one.id, one.help, one.nodes.slice(0, 3).map((node) => node.html)]),
  wider: page.scrollWidth - page.clientWidth,
  smallest: Math.min(...sizes, ...figures),
  shown: shown(".case").length,
  says: document.querySelector("#find output")?.textContent,
  lost: document.getElementById("lost").hidden ? "" : document.getElementById("lost").textContent,
}), "*"));
"""
FRAME = """<!doctype html><iframe src="{page}" width="{width}" height="900"></iframe>
<script>onmessage = (event) => {{ document.body.textContent = "BEGIN" + event.data + "END"; }};</script>"""


@pytest.fixture(scope="module")
def browser() -> str:
    found = next(filter(None, map(shutil.which, NAMES)), None)
    assert found is not None, f"none of {', '.join(NAMES)} is on PATH: install one, as with apt-get install chromium"
    return found


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Reports of several trainers, a failing one and passing cases, of a script that fails and of one without evidence;
    each lets axe-core in."""
    folder = tmp_path_factory.mktemp("pages")
    every = synthetic.all_cases()
    for name, cases in {
        "several": every,
        "failing": [case for case in every if case["trainer"] == "my_loop"],
        "holding": [case for case in every if case["trainer"] == "single"],
    }.items():
        synthetic.write(folder / "results.jsonl", cases)
        render_html(read_results(folder / "results.jsonl"), folder / f"{name}.html")
    found = accused()
    found.leave_open(said("data.same-samples", share=0.5))
    found.lack(said("no-torch"))
    for name, findings in {"flagged": found, "unseen": Findings()}.items():
        (folder / f"{name}.html").write_text(page(findings, ["python", "train.py"]), encoding="utf-8")
    for file in folder.glob("*.html"):
        let_in(file)
    return folder


def let_in(page: Path) -> None:
    """Let axe-core run in a page."""
    assert "AXE" in os.environ, "run nox -s browser, or set AXE to the path of axe-core's axe.min.js"
    axe = Path(os.environ["AXE"]).read_text(encoding="utf-8")
    policy, content = r'<meta http-equiv="Content-Security-Policy"[^>]*>', page.read_text(encoding="utf-8")
    assert re.search(policy, content)
    scripts = f"<script>{axe}</script><script>{INSPECT}</script></body>"
    page.write_text(re.sub(policy, "", content).replace("</body>", scripts), encoding="utf-8")


def inspected(browser: str, page: Path, width: int, theme: str, scratch: Path, fragment: str = "") -> dict[str, Any]:
    """What axe-core finds, how many pixels the page is wider than its frame, and how many cases are to be seen."""
    frame = page.with_name(f"{page.stem}-{width}.html")
    frame.write_text(FRAME.format(page=page.name + fragment, width=width))
    command = [
        browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={scratch}", "--window-size=1400,1000",
        f"--blink-settings=preferredColorScheme={THEMES[theme]}", "--virtual-time-budget=120000", "--dump-dom",
        frame.as_uri(),
    ]  # fmt: skip
    shown = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
    answer = re.search("BEGIN(.*)END", html.unescape(shown), re.DOTALL)
    assert answer, f"the page did not answer: {shown[:500]}"
    found: dict[str, Any] = json.loads(answer[1])
    return found


@pytest.mark.parametrize("name", ["several", "failing", "holding", "flagged", "unseen"])
@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (360, "dark")])
def test_nothing_is_found(browser: str, pages: Path, tmp_path: Path, name: str, width: int, theme: str) -> None:
    found = inspected(browser, pages / f"{name}.html", width, theme, tmp_path)
    assert found["violations"] == []
    assert found["wider"] == 0
    assert found["smallest"] >= 12


def test_a_fault_is_found(browser: str, pages: Path, tmp_path: Path) -> None:
    page = tmp_path / "faulty.html"
    faint = '<p style="color: #aaa; background: #fff; width: 3000px">faint</p><main>'
    page.write_text((pages / "holding.html").read_text(encoding="utf-8").replace("<main>", faint, 1), encoding="utf-8")
    found = inspected(browser, page, 360, "light", tmp_path / "scratch")
    assert "color-contrast" in [one[0] for one in found["violations"]]
    assert found["wider"] > 2000


@pytest.mark.parametrize(
    ("fragment", "count"),
    [
        ("", 22),
        ("#precision=fp16", 4),
        ("#verdict=numerics&path=ddp-w2-acc2", 4),
        ("#q=W3-ACC2", 4),
        ("#problem=1", 4),
        ("#workload=weighted", 5),
        ("#law=amp/unscale-before-clip", 1),
    ],
)
def test_a_filter_stands_in_the_address(browser: str, pages: Path, tmp_path: Path, fragment: str, count: int) -> None:
    found = inspected(browser, pages / "failing.html", 1280, "light", tmp_path, fragment)
    assert found["says"] == f"{count} of 22 cases"
    assert (found["shown"], found["lost"]) == (count, "")


@pytest.mark.parametrize(
    ("fragment", "what"), [("#my_loop/gone", "“my_loop/gone”"), ("#precision=fp4", "precision “fp4”")]
)
def test_an_address_of_another_run_is_answered(
    browser: str, pages: Path, tmp_path: Path, fragment: str, what: str
) -> None:
    found = inspected(browser, pages / "failing.html", 1280, "light", tmp_path, fragment)
    assert found["lost"].startswith(f"This report has no {what}.")


def test_a_filter_without_hits_is_answered(browser: str, pages: Path, tmp_path: Path) -> None:
    found = inspected(browser, pages / "failing.html", 1280, "light", tmp_path, "#precision=fp16&verdict=hang")
    assert found["says"] == "0 of 22 cases: none matches all filters. “Show all” resets them."
