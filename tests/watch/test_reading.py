"""What a recorder writes is read while it comes in, file after file, and removed; what is missing is said."""

import pytest

from conformance.watch import reading
from conformance.watch.judging.findings import said
from conformance.watch.judging.judge import Judge
from conformance.watch.ledger import Ledger
from conformance.watch.lines import encoded
from conformance.watch.parts import part
from conformance.watch.verdict import verdict

from .scripts import Script


def script(steps, world=1):
    """The lines of one rank."""
    made = Script(ranks=1)
    for _ in range(steps):
        made.step(made.backward())
        made.clear()
    made.streams[0][0].world = world
    return [encoded(record).encode() for record in made.streams[0]]


def opened(folder, lines, steps):
    """The account of a process that says that it has written these; and the path of its first file."""
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
    assert judge.finish().steps == 5


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
def test_a_stream_that_is_not_what_the_account_says_is_undecided(tmp_path, damaged):
    lines = script(3)
    entry, first = opened(tmp_path, lines, 3)
    first.write_bytes(b"".join(damaged(lines)))
    judge = Judge()
    assert not reading.Reader(tmp_path, judge).finish()
    findings = judge.finish(is_whole=False)
    assert verdict(findings) == "UNDECIDED"
    assert {lack.values["pid"] for lack in findings.lacks} == {entry.process}


def test_a_process_that_could_not_write_says_why_and_since_when(tmp_path):
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
