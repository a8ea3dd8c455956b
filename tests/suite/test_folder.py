"""Files of `conformance run` in its folder: paths relative to it, no secrets, nothing written through a link."""

import fcntl
import json
import os
import shutil
from pathlib import Path

import pytest

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
    """Also in the commands to rerun a case, and when --resume compares both runs."""
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
    """Only the header contains the whole command line of a run."""
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


@pytest.mark.parametrize(
    "options", [("--output", "."), ("--junit", "pipe.xml")], ids=["the folder's results", "a file for CI"]
)
def test_a_pipe_is_refused_and_not_waited_for(conformance, write, options):
    for name in ("conformance-results.jsonl", "pipe.xml"):
        os.mkfifo(name)
    if options[0] == "--junit":
        os.remove("conformance-results.jsonl")
    ended = conformance("run", write(), "--case", CASE, *options)
    assert (ended.code, ended.out) == (2, "")
    assert ": it is a pipe" in ended.err


def test_a_report_into_a_pipe_is_refused(conformance, write):
    assert conformance("run", write(), "--case", CASE).code == 0
    os.mkfifo("pipe")
    for option in ("--output", "--markdown"):
        ended = conformance("report", "conformance-results.jsonl", option, "pipe")
        assert (ended.code, ended.err) == (2, "conformance: cannot write pipe: it is a pipe\n")


def test_a_lock_on_the_folder_stops_no_run(folder):
    descriptor = os.open(folder, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    run = RunFolder(folder)
    run.own.write_text("results")
    run.remove_report()
    # No other process uses it.
    with run.placing(), (folder / ".conformance-lock").open() as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(descriptor)
    assert os.listdir(folder) == ["conformance-results.jsonl"]


@pytest.mark.parametrize(
    "options",
    [
        ("--junit", "conformance-results.jsonl"),
        ("--markdown", "./conformance-report.html"),
        ("--markdown", "a", "--sarif", "link/a"),
    ],
    ids=" ".join,
)
def test_two_uses_of_one_file_are_refused(conformance, write, options):
    Path("link").symlink_to(".")
    ended = conformance("run", write(), "--case", CASE, *options)
    said = "this command also uses it for something else; name another file"
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == f"conformance: cannot write {Path(options[-1])}: {said}\n"
    assert not Path("conformance-results.jsonl").exists()


def test_a_numbered_report_belongs_to_the_results_of_its_number(conformance, write):
    assert conformance("run", write(), "--case", CASE).code == 0
    first = Path("conformance-report.html").read_text()
    shutil.copy("conformance-results.jsonl", "conformance-results-2.jsonl")
    Path("conformance-report.html").write_text("of other results")
    assert conformance("report", "conformance-results-2.jsonl").code == 0
    assert Path("conformance-report.html").read_text() == "of other results"
    assert Path("conformance-report-2.html").read_text() == first
    assert conformance("report", "conformance-results.jsonl", "--junit", "conformance-results.jsonl").code == 2


def test_files_for_ci_of_an_earlier_run_are_removed_when_the_next_begins(conformance, write, monkeypatch):
    names = FORMATS[1::2]
    for name in names:
        Path(name).write_text("of an earlier run")
    assert conformance("run", "./nothing.py", *FORMATS).code == 2
    assert [name for name in names if not Path(name).exists()] == []
    monkeypatch.setattr("conformance.cli.run._finish", lambda *_: 137)
    assert conformance("run", write(), "--case", CASE, *FORMATS).code == 137
    assert [name for name in names if Path(name).exists()] == []


@pytest.mark.parametrize("keeps", [True, False])
def test_no_file_is_named_that_somebody_removed(conformance, write, folder, monkeypatch, keeps):
    def failing(results, report):
        if not keeps:
            shutil.rmtree("out")
        raise OSError("no room")

    monkeypatch.setattr("conformance.report.html.render_html", failing)
    ended = conformance("run", write(), "--case", CASE, "--output", "out")
    assert ended.code == 3
    where = "the results are in out/conformance-results.jsonl" if keeps else "the results of this run are gone from out"
    assert where in ended.err
    assert keeps or ".jsonl" not in ended.err
