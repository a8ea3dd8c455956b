"""A recorder writes only to its own files, counts its records, and is read while it writes."""

import os
import resource

import pytest

from conformance.watch import reading, records
from conformance.watch.judging.findings import said
from conformance.watch.judging.watch_judge import Judge
from conformance.watch.ledger import ENDED, FAILED, Ledger
from conformance.watch.record_lines import encoded, part
from conformance.watch.recording import output
from conformance.watch.recording.output import Lost, Output
from conformance.watch.verdict import verdict

from .scripts import Script

RECORD = records.Passed(0)


@pytest.fixture
def ledger(tmp_path):
    return Ledger.made(tmp_path)


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def written(tmp_path):
    [path] = tmp_path.glob("*.jsonl")
    return path


def test_no_descriptor_stays_open(tmp_path, ledger):
    before = descriptors()
    out = Output(str(tmp_path))
    out.write([RECORD, RECORD])
    assert descriptors() == before
    out.write([RECORD])
    out.end()
    [account] = ledger.accounts()
    assert (account.records, account.steps, account.state) == (3, 3, ENDED)
    assert written(tmp_path).read_bytes().count(b"\n") == 3


def test_a_file_that_replaces_the_records_is_not_changed(tmp_path, ledger):
    out = Output(str(tmp_path))
    out.write([RECORD])
    path = written(tmp_path)
    path.rename(tmp_path / "aside")
    path.write_text("the script's")
    with pytest.raises(Lost):
        out.write([RECORD])
    assert path.read_text() == "the script's"
    [account] = ledger.accounts()
    assert (account.records, account.state) == (2, FAILED)


def test_a_link_that_replaces_the_records_is_not_followed(tmp_path, ledger):
    out = Output(str(tmp_path))
    out.write([RECORD])
    path = written(tmp_path)
    target = tmp_path / "checkpoint"
    target.write_text("the script's")
    path.unlink()
    path.symlink_to(target)
    with pytest.raises(OSError, match="symbolic links"):
        out.write([RECORD])
    assert target.read_text() == "the script's"
    assert ledger.accounts()[0].state == FAILED


def test_a_descriptor_that_was_replaced_meanwhile_is_neither_written_nor_closed(tmp_path, ledger, monkeypatch):
    """Another thread may replace it between any two calls."""
    theirs = tmp_path / "checkpoint"
    opened = []

    def replaced(*arguments):
        descriptor = os.open(*arguments)
        other = os.open(theirs, os.O_RDWR | os.O_CREAT)
        os.dup2(other, descriptor)
        os.close(other)
        opened.append(descriptor)
        return descriptor

    out = Output(str(tmp_path))
    out.write([RECORD])
    monkeypatch.setattr(output, "open_file", replaced)
    with pytest.raises(Lost):
        out.write([RECORD])
    assert theirs.read_bytes() == b""
    os.close(*opened)
    assert ledger.accounts()[0].state == FAILED


def test_a_limit_of_the_file_size_is_reported_before_it_is_reached(tmp_path, ledger):
    """The write itself would raise a signal that ends the process."""
    out = Output(str(tmp_path))
    out.write([RECORD])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, before[1]))
    try:
        with pytest.raises(OSError, match="RLIMIT_FSIZE"):
            out.write([RECORD, RECORD])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "RLIMIT_FSIZE" in ledger.accounts()[0].reason


def test_a_process_forked_by_a_library_writes_nothing(tmp_path, ledger, monkeypatch):
    out = Output(str(tmp_path))
    out.write([RECORD])
    # As in a child that was forked without Python.
    monkeypatch.setattr(output, "getpid", lambda: 1)
    with pytest.raises(Lost):
        out.write([RECORD])
    parent, child = ledger.accounts()
    assert (parent.records, parent.reason) == (1, "")
    assert child.state == FAILED


def test_a_large_file_is_followed_by_a_new_one(tmp_path, ledger, monkeypatch):
    monkeypatch.setattr(output, "MOST_BYTES", 30)
    out = Output(str(tmp_path))
    for _ in range(6):
        out.write([RECORD])
    names = sorted(path.name.split(".")[1] for path in tmp_path.glob("*.jsonl"))
    assert names == ["0", "1", "2"]


def test_records_after_the_end_of_the_watch_are_not_written(tmp_path, ledger):
    out = Output(str(tmp_path))
    out.write([RECORD])
    ledger.end()
    with pytest.raises(Lost):
        out.write([RECORD])
    assert ledger.accounts()[0].records == 1


def script(steps, world=1):
    """The lines of one rank."""
    made = Script(ranks=1)
    for _ in range(steps):
        made.step(made.backward())
        made.clear()
    made.streams[0][0].world = world
    return [encoded(record).encode() for record in made.streams[0]]


def opened(folder, lines, steps):
    """The account of a process that counted these records, and the path of its first file."""
    entry = Ledger.made(folder).opened()
    entry.add(len(lines), steps)
    return entry, part(folder, entry.stem, 0)


def test_files_are_read_one_after_the_other(tmp_path):
    lines = script(2)
    entry, first = opened(tmp_path, lines, 2)
    judge = Judge()
    reader = reading.Reader(tmp_path, judge)
    first.write_bytes(b"".join(lines[:10]) + lines[10][:7])
    reader.read()
    with first.open("ab") as file:
        file.write(lines[10][7:] + lines[11])
    part(tmp_path, entry.stem, 1).write_bytes(b"".join(lines[12:]))
    assert reader.finish()
    assert not first.exists()
    findings = judge.finish()
    assert (findings.steps, findings.conserved) == (2, 2)
    assert verdict(findings) == "CONFORMS"


def test_a_rank_that_is_ahead_waits_and_is_read_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr("conformance.watch.judging.launch._AHEAD", 1)
    lines = script(5, world=2)
    _, first = opened(tmp_path, lines, 5)
    first.write_bytes(b"".join(lines))
    judge = Judge()
    reading.Reader(tmp_path, judge).finish()
    # Of both ranks.
    assert judge.finish().steps == 2 * 5


def last_is_lost(lines):
    return lines[:-1]


def last_is_torn(lines):
    return [*lines[:-1], lines[-1][:-9]]


def first_is_foreign(lines):
    return [b"\xff\xfe\x00 no record\n", *lines[1:]]


def one_is_of_another_encoding(lines):
    return [*lines[:10], lines[10].decode().encode("utf-16"), *lines[11:]]


def one_is_cut_short(lines):
    return [*lines[:-1], b'["Stepped",0]\n']


def sketches_are_of_other_tensors(lines):
    return [line.replace(b'"Local",', b'"Left",') for line in lines]


@pytest.mark.parametrize(
    "damaged",
    [
        last_is_lost,
        last_is_torn,
        first_is_foreign,
        one_is_of_another_encoding,
        one_is_cut_short,
        sketches_are_of_other_tensors,
    ],
)
def test_a_stream_that_differs_from_its_account_is_undecided(tmp_path, damaged):
    lines = script(3)
    entry, first = opened(tmp_path, lines, 3)
    first.write_bytes(b"".join(damaged(lines)))
    judge = Judge()
    assert not reading.Reader(tmp_path, judge).finish()
    findings = judge.finish(is_whole=False)
    assert verdict(findings) == "UNDECIDED"
    assert {lack.values["pid"] for lack in findings.lacks} == {entry.process}


def test_a_process_that_could_not_write_is_reported_with_reason_and_step(tmp_path):
    lines = script(3)
    entry, first = opened(tmp_path, lines, 3)
    first.write_bytes(b"".join(lines))
    entry.add(7, 1)
    entry.fail("No space left on device")
    judge = Judge()
    reading.Reader(tmp_path, judge).finish()
    reason = {"pid": entry.process, "step": 3, "reason": "No space left on device"}
    assert judge.finish(is_whole=False).lacks == [said("records-stopped", **reason)]


def test_a_process_without_an_account_and_a_foreign_file_are_undecided(tmp_path):
    ledger = Ledger.made(tmp_path)
    while ledger.opened() is not None:
        pass
    (tmp_path / "5.0.jsonl").write_text("no record\n")
    judge = Judge()
    assert not reading.Reader(tmp_path, judge).finish()
    assert judge.finish().lacks == [said("foreign-file", name="5.0.jsonl"), said("no-account")]
