"""The results file: reading returns what was written; a cut file is marked; other faults give one clear line."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from conformance.results import Results, ResultsError, ResultsWriter, read_results
from conformance.results.plain import ShapeError, record
from conformance.results.result_lines import SCHEMA_VERSION, CaseRecord, Header

from .regression import Case

HEADER = Header(tool="trainer-conformance", version="0.1.0", started="now", command="c", planned=2)


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines(keepends=True)


def error_of(path: Path) -> str:
    with pytest.raises(ResultsError) as caught:
        read_results(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_is_written_is_read(results: Results, cases: list[Case]) -> None:
    assert [case.id for case in results.cases] == [case["id"] for case in cases]
    first, written = results.cases[0], cases[0]
    assert first.steps[3].observed == tuple(written["steps"][3]["observed"])
    assert first.certificate is not None
    assert first.certificate.stages[0].bits == written["certificate"]["stages"][0]["bits"]
    assert results.header.machine["horovod"] is None
    assert results.mutants is not None
    assert [row.caught for row in results.mutants.rows] == [True, False]
    assert results.cut_off is None


def test_numbers_that_json_cannot_say_are_read_back(read: Callable[..., Results], one_case: Case) -> None:
    one_case["steps"][0]["observed"] = [math.nan, math.inf, -math.inf]
    observed = read([one_case | {"verdict": "FAIL (numerics)"}]).cases[0].steps[0].observed
    assert math.isnan(observed[0] or 0)
    assert observed[1:] == (math.inf, -math.inf)


def test_each_line_is_on_disk_as_soon_as_it_is_written(tmp_path: Path, one_case: Case) -> None:
    writer = ResultsWriter(tmp_path / "r.jsonl", HEADER)
    writer.case(record(CaseRecord, one_case))
    assert len(lines_of(tmp_path / "r.jsonl")) == 2
    assert len(read_results(tmp_path / "r.jsonl").cases) == 1
    writer.close()


def test_a_run_that_was_interrupted_has_no_footer(tmp_path: Path, one_case: Case) -> None:
    def interrupted() -> None:
        with ResultsWriter(tmp_path / "r.jsonl", HEADER) as writer:
            writer.case(record(CaseRecord, one_case))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    found = read_results(tmp_path / "r.jsonl")
    assert found.footer is None
    assert found.cut_off is not None


def test_a_run_that_was_cut_off_is_marked_at_every_length(results_file: Path, tmp_path: Path) -> None:
    """Wherever the file is cut, the cases before are read, and the run is not complete."""
    whole = results_file.read_bytes()
    header = whole.index(b"\n") + 1
    path = tmp_path / "cut.jsonl"
    for length in (header, header + 1, header + 7000, len(whole) // 2, len(whole) - 200, len(whole) - 2):
        path.write_bytes(whole[:length])
        found = read_results(path)
        assert not found.conforming
        assert found.cut_off == f"the run was cut off: {len(found.cases)} of 152 cases"


def test_a_run_that_was_stopped_before_all_cases_is_not_complete(read: Callable[..., Results], one_case: Case) -> None:
    found = read([one_case], planned=120)
    assert (found.cut_off, found.conforming) == ("the run was cut off: 1 of 120 cases", False)
    assert found.footer is not None


@pytest.mark.parametrize(
    ("verdict", "conforming"),
    [("PASS (exact)", True), ("PASS (bounded)", True), ("INCONCLUSIVE", False), ("SETUP", False),
     ("HANG", False), ("UNAVAILABLE", False), ("UNSUPPORTED", False)],
)  # fmt: skip
def test_what_conforms(read: Callable[..., Results], one_case: Case, verdict: str, conforming: bool) -> None:
    """A run in which nothing was judged does not conform."""
    certificate = {"exact": verdict != "PASS (bounded)"}
    assert read([one_case | {"verdict": verdict, "certificate": certificate}]).conforming is conforming


def test_what_did_not_run_does_not_spoil_what_did(read: Callable[..., Results], one_case: Case) -> None:
    found = read([one_case, one_case | {"id": "another", "verdict": "UNAVAILABLE"}])
    assert found.conforming
    assert (found.passed, found.failed, found.not_run) == (1, 0, 1)


@pytest.mark.parametrize("content", [b"", b"\n", b"hello", b"\xff\xfe\x00", b"[]\n", b"{}\n", b'{"kind":"case"}\n'])
def test_another_kind_of_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other.txt"
    assert "No such file" in error_of(path)
    path.write_bytes(content)
    assert str(path) in error_of(path)


def test_another_schema_version(results_file: Path, tmp_path: Path) -> None:
    header = json.loads(lines_of(results_file)[0]) | {"schema": SCHEMA_VERSION + 1, "version": "9.1"}
    path = tmp_path / "newer.jsonl"
    path.write_text(json.dumps(header) + "\n")
    message = error_of(path)
    assert f"schema version {SCHEMA_VERSION + 1}" in message
    assert "9.1" in message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: [*lines[:3], "{broken\n", *lines[3:]], "line 4 is not JSON"),
        (lambda lines: [*lines[:3], '{"kind":"law"}\n', *lines[3:]],
         'line 4 has the unknown kind "law"; expected one of header, case, mutants, footer'),
        (lambda lines: [*lines, lines[1]], "comes after the footer"),
        (lambda lines: [*lines[:3], lines[0], *lines[3:]], 'line 4 is a second line of the kind "header"'),
        (lambda lines: [*lines[:2], *lines[3:]], "the footer does not match the cases in the file (it counts 152)"),
        (lambda lines: [lines[0], lines[1].replace('"verdict":', '"verdit":', 1), *lines[2:]],
         "line 2: the line has an unknown field verdit; did you mean verdict?"),
        (lambda lines: [lines[0], lines[1].replace("PASS (exact)", "PASS", 1), *lines[2:]],
         'line 2: the field verdict is "PASS", expected `UNSUPPORTED`, '),
        (lambda lines: [lines[0], lines[1].replace('"observed":"', '"observed":["a",', 1), *lines[2:]],
         "line 2 is not JSON"),
        (lambda lines: [lines[0], lines[1].replace('"error":[', '"error":["a",', 1), *lines[2:]],
         'line 2: the field steps[0].error[0] is "a", expected number or null'),
    ],
)  # fmt: skip
def test_a_damaged_file(
    results_file: Path, tmp_path: Path, change: Callable[[list[str]], list[str]], message: str
) -> None:
    path = tmp_path / "damaged.jsonl"
    path.write_text("".join(change(lines_of(results_file))))
    assert message in error_of(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"verdict": "OK"}, r"field verdict is .*OK"), ({"extra": 1}, "unknown field extra"),
        ({"steps": 3}, "field steps is 3, expected list of Step"), ({"id": None}, "field id is null"),
        ({"notes": "text"}, "field notes is .*, expected list of strings"),
        ({"skips": [0, 1.5]}, r"field skips\[1\] is 1.5, expected integer"),
        ({"laws": {"a/b": "c"}}, r"field laws\['a/b'\] is "),
        ({"steps": [3]}, r"field steps\[0\] is 3, expected Step"),
        ({"power": {}}, "field power.value is missing"),
        ({"power": {"value": 1, "txt": ""}}, "field power has an unknown field txt; did you mean text"),
        ({"output": "a" * 80}, "unknown field output"), ({"id": ["a" * 80]}, r'"aaa[^b]*\.\.\., expected'),
    ],
)  # fmt: skip
def test_what_is_no_record(one_case: Case, change: Case, message: str) -> None:
    with pytest.raises(ShapeError, match=message) as caught:
        record(CaseRecord, one_case | change)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_opened_and_one_that_cannot_be_written(tmp_path: Path) -> None:
    """Afterwards no file is open."""
    with pytest.raises(ResultsError, match="cannot write"):
        ResultsWriter(tmp_path / "none" / "r.jsonl", HEADER)
    before = os.listdir("/proc/self/fd")
    # The caught error keeps the writer alive, whose collection would also close the file.
    with pytest.raises(OSError, match="No space left on device") as caught:
        ResultsWriter("/dev/full", HEADER)
    assert os.listdir("/proc/self/fd") == before, caught


def test_a_footer_that_cannot_be_written_leaves_no_file_open(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "r.jsonl")
    before = os.listdir("/proc/self/fd")
    reader = os.open(tmp_path / "r.jsonl", os.O_RDONLY | os.O_NONBLOCK)
    writer = ResultsWriter(tmp_path / "r.jsonl", HEADER)
    os.close(reader)
    with pytest.raises(BrokenPipeError):
        writer.close()
    assert os.listdir("/proc/self/fd") == before
