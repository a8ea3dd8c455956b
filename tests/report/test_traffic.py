"""The table of traffic: a row for each path, or for each rank if they differ; deviations are marked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conformance.report.html import render_html
from conformance.report.traffic_table import traffic
from conformance.results import read_results

from ..results.synthetic import passing


def rank(sent, received, formula=None):
    known = {} if formula is None else {"expected_sent": formula, "expected_received": formula, "expected_reduced": 0}
    return {"sent": sent, "received": received, "reduced": 0, "ring": 0, "other": 0, **known}


def case(trainer, backend, world, precision, ranks):
    return {
        **passing(trainer, backend, world, 1, precision, "momentum"),
        "traffic": {"gradient": 12, "state": 12, "ranks": ranks},
    }


CASES = [
    case("parameter_server", "parameter-server", 3, "fp64", [rank(48, 48, 48), rank(24, 24, 24), rank(24, 24, 24)]),
    case("parameter_server", "parameter-server", 3, "fp32", [rank(24, 24, 24), rank(12, 12, 12), rank(12, 12, 12)]),
    case("wasteful", "ring", 2, "fp32", [rank(12, 12, 12)] * 2),
    case("wasteful", "ring", 2, "bf16", [rank(24.5, 24.5, 12)] * 2),
    case("mine", "elsewhere", 2, "fp32", [rank(5, 7), rank(7, 5)]),
    case("split", "fsdp2", 2, "fp32", [{**rank(0, 0, 0), "state": 8}, {**rank(0, 0, 0), "state": 4}]),
    passing("ddp", "ddp", 2, 1, "fp32", "momentum"),
    passing("single", "single", 1, 1, "fp32", "momentum"),
]


@pytest.fixture
def results(results_file: Path, tmp_path: Path):
    first, *_ = results_file.read_text().splitlines()
    lines = [first, *(json.dumps({"kind": "case", **case}) for case in CASES)]
    (tmp_path / "results.jsonl").write_text("\n".join(lines) + "\n")
    return read_results(tmp_path / "results.jsonl")


def test_rows(results):
    found = {one.trainer: one for one in traffic(results)}
    assert set(found) == {"parameter_server", "wasteful", "mine", "split", "ddp"}
    assert [name for name, one in found.items() if one.has_state] == ["split"]
    server, [row] = found["parameter_server"], found["ddp"].rows
    assert [(row.ranks, row.amount("sent"), row.case.precision) for row in server.rows] == [
        ("rank 0", (24, 24), "fp32"),
        ("ranks 1, 2", (12, 12), "fp32"),
    ]
    assert (row.ranks, row.amount("reduced")[0], row.bytes.ring, row.bytes.other) == ("every rank", 12, 12, 2.5)
    assert [(one.off, one.has("sent", "received"), one.has("reduced")) for one in (server, found["ddp"])] == [
        (0, True, False),
        (0, False, True),
    ]


def test_a_path_is_shown_by_the_case_that_is_off_and_without_a_formula_none_is(results):
    [wasteful] = [one for one in traffic(results) if one.trainer == "wasteful"]
    assert wasteful.off == 1
    [row] = wasteful.rows
    assert (row.amount("sent"), row.is_off, row.case.precision) == ((24.5, 12), True, "bf16")
    [mine] = [one for one in traffic(results) if one.trainer == "mine"]
    assert mine.formula is None
    assert [(row.ranks, row.is_off) for row in mine.rows] == [("rank 0", False), ("rank 1", False)]


def test_on_the_page(results, tmp_path):
    render_html(results, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text().split('<section id="traffic">')[1].split("</section>")[0]
    assert '<td class="num off" data-name="sent">24.5 B<small>formula 12 B</small></td>' in page
    assert "1 path differs" in page
    assert page.count("as expected") == 3
    assert '<td class="num" data-name="optimizer\'s state">8 B of 12 B<small>share 6 B</small></td>' in page
    assert page.count('data-name="optimizer\'s state"') == 2
    assert '<td class="num" data-name="a ring sends">12 B</td>' in page
