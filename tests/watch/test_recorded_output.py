"""A recorder holds no file open, writes to none that is not its own, and accounts for what it could not write."""

import os
import resource

import pytest

from conformance.watch import records
from conformance.watch.ledger import ENDED, FAILED, Ledger
from conformance.watch.recording import output
from conformance.watch.recording.output import Lost, Output

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


def test_a_file_in_the_place_of_its_own_is_left_as_it_is(tmp_path, ledger):
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


def test_a_link_in_the_place_of_its_own_is_not_followed(tmp_path, ledger):
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
    """Another thread may do so between any two calls."""
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


def test_a_limit_of_the_size_of_files_is_said_before_it_is_reached(tmp_path, ledger):
    """The write itself would send a signal that ends the process."""
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


def test_what_a_library_forks_writes_nothing_for_its_parent(tmp_path, ledger, monkeypatch):
    out = Output(str(tmp_path))
    out.write([RECORD])
    # As in a child, where Python was not told of the fork.
    monkeypatch.setattr(output, "getpid", lambda: 1)
    with pytest.raises(Lost):
        out.write([RECORD])
    parent, child = ledger.accounts()
    assert (parent.records, parent.reason) == (1, "")
    assert child.state == FAILED


def test_parts_follow_each_other_and_are_all_new(tmp_path, ledger, monkeypatch):
    monkeypatch.setattr(output, "MOST_BYTES", 30)
    out = Output(str(tmp_path))
    for _ in range(6):
        out.write([RECORD])
    names = sorted(path.name.split(".")[1] for path in tmp_path.glob("*.jsonl"))
    assert names == ["0", "1", "2"]


def test_a_watch_that_is_over_gets_nothing_more(tmp_path, ledger):
    out = Output(str(tmp_path))
    out.write([RECORD])
    ledger.end()
    with pytest.raises(Lost):
        out.write([RECORD])
    assert ledger.accounts()[0].records == 1
