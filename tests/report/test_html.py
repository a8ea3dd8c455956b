"""The page is one file that fetches nothing, is complete without JavaScript, and runs no foreign code."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from conformance.report.html import WORKLOADS, render_html
from conformance.report.laws import DOCS
from conformance.report.verdicts import LOOKS
from conformance.results import Results, ResultsError

from ..results.regression import Case
from .conftest import Page


def test_it_fetches_nothing(html: str) -> None:
    page = Page(html)
    for name, value in page.attributes:
        assert name not in ("src", "srcset", "style") and not name.startswith("on")
        if name == "href":
            assert value.startswith(("#", DOCS)) or value == WORKLOADS
    assert not re.search(r"url\(|@import|https?://", re.sub(f'<a href="({WORKLOADS}|{DOCS}[^"]*)">', "", html))


def test_its_policy_allows_its_own_style_and_script_and_no_other(html: str) -> None:
    policy = re.search(r'content="(default-src[^"]*)"', html)
    assert policy
    allowed = policy[1].replace("&#39;", "'")
    assert allowed.startswith("default-src 'none'; ")
    for tag in ("style", "script"):
        inside = re.search(f"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        assert inside
        digest = base64.b64encode(hashlib.sha256(inside[1].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in allowed


def test_every_link_leads_somewhere_and_ids_are_unique(html: str) -> None:
    page = Page(html)
    ids = [value for name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    inside = {value[1:] for name, value in page.attributes if name == "href" and not value.startswith("https://")}
    assert inside <= set(ids)


def test_the_workloads_are_shown_in_the_documentation() -> None:
    root = Path(__file__).parents[2]
    assert (root / WORKLOADS.partition("/blob/main/")[2]).is_file()
    assert f'Repository = "{WORKLOADS.partition("/blob/")[0]}"' in (root / "pyproject.toml").read_text()


def test_every_case_is_there_without_javascript(html: str, results: Results) -> None:
    text = Page(html).text
    for case in results.cases:
        assert case.id in text
        assert case.headline in text
        assert case.command.replace(case.id, "ID") in text
        assert not case.failed or case.command in text
    for look in LOOKS.values():
        assert look.meaning in text
    assert "3.11.7" in text
    assert "Appendix" in text


def test_evidence_of_a_failure(html: str) -> None:
    text = Page(html).text
    assert "The trainer adds up the micro-batches without dividing by their number" in text
    assert "First difference: weights after step 0, weight[0]" in text
    assert re.search(r"Expected\s*weight\[0\] after step 0 is 0.9453125\s+Observed\s*1.890625", text)
    assert "AssertionError: No inf checks were recorded for this optimizer." in text
    assert 'File "my_loop.py", line 58 in average_gradients' in text
    assert "ranks 0 and 1 read the same 6 samples" in text


def test_hostile_text_everywhere_stays_text(page: Callable[..., str], one_case: Case, hostile: str) -> None:
    """Every string of a case is text that would break out of an element, attribute or line."""

    def poisoned(value: object, key: str = "") -> object:
        if isinstance(value, dict):
            return {poisoned(name, "key") if key == "collectives" else name: poisoned(item, name)
                    for name, item in value.items()}  # fmt: skip
        if isinstance(value, list):
            return [poisoned(item, key) for item in value]
        # A rank of a case that passed must have exited with 0.
        is_read = key in ("verdict", "value", "way") or value == "exited 0"
        return hostile + value if isinstance(value, str) and not is_read else value

    rank = {"rank": 0, "exit": "x", "output": "o", "stack": "s", "traceback": "t"}
    full = one_case | {
        "verdict": "CRASH",
        "notes": ["n"],
        "explained_by": ["e"],
        "undeclared": "u",
        "behaviour": [{"way": "last_window=drop", "declared": "d"}],
        "ranks": [rank],
    }
    content = page([poisoned(full), poisoned(one_case | {"id": "another"})])
    parsed = Page(content)
    assert "img" not in parsed.tags
    assert parsed.tags.count("script") == 1
    assert not any(name.startswith("on") for name, _ in parsed.attributes)
    assert not re.search("[\x00-\x08\x0b-\x1f\u2028\u202e]", content)
    assert "\\u202egnp.exe" in parsed.text
    assert "red" in parsed.text


def test_the_first_screen_says_which_trainer_and_why(page: Callable[..., str], cases: list[Case]) -> None:
    own = [case for case in cases if case["trainer"] == "my_loop"]
    content = page(own)
    assert '<h1 class="t-bad">my_loop does not conform: 7 problems</h1>' in content
    head = content.partition('<section id="failed">')[0]
    assert 'href="#problem-1"' in head and "adds up the micro-batches without dividing by their number" in head
    assert 'class="plain standings"' not in head
    assert "<dd><code>sum-over-window</code> gives exactly these numbers" in content
    order = [content.index(f'<section id="{name}">') for name in ("failed", "matrix", "facts", "not-run", "cases")]
    assert order == sorted(order)


def test_several_trainers_have_a_table_on_top(html: str) -> None:
    head = html.partition('<section id="failed">')[0]
    assert "1 of 3 trainers does not conform: 7 problems</h1>" in head
    rows = re.findall(r'<tr><th scope="row"><a href="#([^"]+)">(\w+)</a></th><td class="t-\w+">([^<]+)</td>', head)
    assert [(name, verdict) for _, name, verdict in rows] == [
        ("my_loop", "does not conform"),
        ("single", "conforms"),
        ("ddp", "conforms"),
        ("horovod", "was not judged"),
    ]


def test_what_is_explained_comes_first(html: str) -> None:
    titles = re.findall(r'<span class="what">([^<]+)', html.partition('<section id="matrix">')[0])
    unknown = "Wrong numbers that no known bug explains"
    assert titles[-2] == unknown and titles[-1].startswith("The bound is wider than the smallest bug")
    assert len(set(titles)) == len(titles)


def test_each_failing_case_has_its_pictures(html: str) -> None:
    """The first wrong quantity by step, if a reader sees it, and the lanes of the ranks come before all else."""
    for block in html.split('<details class="case"')[1:]:
        block = block.partition("<h5>Run this case again</h5>")[0]
        if 'class="timeline"' in block:
            assert block.index('aria-label="What each rank did, in order') < block.index('class="setting"')
        if '<svg class="fig"' in block:
            assert block.index('<svg class="fig"') < block.index('class="setting"')
    assert html.count('<svg class="fig"') > 8
    assert 'aria-label="What each rank did, in order; amp/unscale-before-clip is broken"' in html


def test_a_cut_run_is_marked_loudly(page: Callable[..., str], one_case: Case) -> None:
    text = Page(page([one_case], planned=120)).text
    assert "Incomplete. The run was cut off: 1 of 120 cases." in text
    assert "is not shown to conform" in text


def test_what_did_not_run_is_never_counted_as_passed(page: Callable[..., str], one_case: Case) -> None:
    idle = one_case | {"verdict": "UNAVAILABLE", "headline": "pip install it"}
    text = Page(page([idle | {"id": str(number)} for number in range(3)])).text
    assert "ddp was not judged" in text and "No case ran." in text
    assert "3 not run" in text
    assert "Nothing was judged" in Page(page([])).text


def test_long_output_is_cut_and_says_so(page: Callable[..., str], one_case: Case) -> None:
    one_case["ranks"][0]["output"] = "begin" + "x" * 20_000 + "end"
    text = Page(page([one_case | {"verdict": "FAIL (numerics)"}])).text
    assert "begin" not in text
    assert "xend" in text
    assert "16008 characters before this are in the results file" in text


def test_a_page_stays_light(page: Callable[..., str], cases: list[Case]) -> None:
    """2,000 passed cases take at most 1 MB, a failed one a hundredth of that."""
    held = [case for case in cases if case["verdict"].startswith("PASS")]
    many = [held[i % len(held)] | {"id": f"{held[i % len(held)]['id']}-{i}"} for i in range(2000)]
    assert len(page(many).encode()) <= 1_000_000
    few, wrong = many[:20], [case for case in cases if case["verdict"].startswith("FAIL")]
    assert len(page(few + wrong).encode()) - len(page(few).encode()) < 10_000 * len(wrong)


def test_cases_of_one_problem_are_shown_in_full_three_times(page: Callable[..., str], cases: list[Case]) -> None:
    failed = next(case for case in cases if case.get("timeline") and case.get("findings"))
    html = page([failed | {"id": f"{failed['id']}-{number}"} for number in range(20)])
    assert html.count('class="timeline"') == html.count("<h5>Guards</h5>") == 3
    assert html.count("which has the same problem") == 17


def test_a_case_that_is_resumed_has_another_name_than_that_which_is_not(
    page: Callable[..., str], cases: list[Case]
) -> None:
    plain = next(case for case in cases if case["verdict"].startswith("FAIL"))
    shown = page([plain, plain | {"id": f"{plain['id']}-resumed-at-3"}])
    names = re.findall('<summary>.*?<span class="name">([^<]*)</span><span class="headline">', shown)
    assert names == [plain["workload"], f"{plain['workload']}-resumed-at-3"]


def test_a_problem_links_to_the_pages_about_it(results: Results, tmp_path: Path) -> None:
    """Such as the findings of a published report."""
    about = next(case for case in results.cases if case.verdict == "HANG")
    render_html(results, tmp_path / "a.html", lambda case: [("It `hangs`", "findings/it.md")] if case is about else ())
    text = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert text.count('Finding: <a href="findings/it.md">It <code>hangs</code></a>') == 1


def test_a_folder_that_is_not_there(results: Results, tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match="cannot write"):
        render_html(results, tmp_path / "none" / "report.html")
