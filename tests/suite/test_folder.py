"""What `conformance run` leaves in its folder: paths from there, no secrets, nothing written through a link."""

import json
from pathlib import Path

from conformance.cli.files import RunFolder

FILES = ("conformance-results.jsonl", "conformance-report.html", "junit.xml", "a.md", "a.sarif", "badge.svg")
CASE = "single-batched-fp32-momentum"
FORMATS = ("--junit", "junit.xml", "--markdown", "a.md", "--sarif", "a.sarif", "--badge", "badge.svg")


def test_nothing_is_written_through_symbolic_links(conformance, write, folder):
    elsewhere = folder / "elsewhere"
    elsewhere.write_text("mine")
    for name in FILES:
        Path(name).symlink_to(elsewhere)
    ended = conformance("run", write(), "--case", CASE, *FORMATS)
    assert (ended.code, ended.err) == (0, "")
    assert elsewhere.read_text() == "mine"
    assert [name for name in FILES if Path(name).is_symlink()] == []


def test_a_trainer_is_named_from_the_folder_of_the_run(conformance, write, folder):
    """Also on the lines that run a case again, and where --resume compares both runs."""
    target = str(folder / write(before="raise ValueError", name="sub/mine.py"))
    ended = conformance("run", target, "--case", CASE, "--traces", str(folder / "traces"), *FORMATS)
    assert f"conformance run sub/mine.py --case {CASE}" in ended.out
    lines = Path("conformance-results.jsonl").read_text().splitlines()
    header, case, _ = map(json.loads, lines)
    assert header["command"].startswith(f"conformance run sub/mine.py --case {CASE} --traces traces")
    assert (case["target"], "sub/mine.py" in header["sources"]) == ("sub/mine.py", True)
    for name in ("a.md", "junit.xml", "a.sarif"):
        assert f"conformance run sub/mine.py --case {CASE}" in Path(name).read_text()
    [result] = json.loads(Path("a.sarif").read_text())["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "sub/mine.py"
    Path("conformance-results.jsonl").write_text("\n".join(lines[:2]) + "\n")
    again = conformance("run", target, "--case", CASE, "--traces", str(folder / "traces"), "--resume")
    assert again.err == ""


def test_a_secret_in_the_command_is_in_no_file(conformance, write):
    """The header is the only place where a run keeps its whole command line."""
    ended = conformance("run", write(), "--case", CASE, "--traces", "https://me:s3cret@host/traces", *FORMATS)
    assert ended.code == 0
    assert "REDACTED" in Path("conformance-results.jsonl").read_text()
    assert [name for name in FILES if "s3cret" in Path(name).read_text()] == []


def test_a_run_removes_no_report_that_another_has_put_there_since_it_began(folder):
    earlier, run = RunFolder(folder), RunFolder(folder)
    earlier.report.write_text("of the other run")
    run.remove_report()
    assert run.report.read_text() == "of the other run"
    RunFolder(folder).remove_report()
    assert not run.report.exists()
