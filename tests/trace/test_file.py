"""Trace files: what is written is read again, and what cannot be read is refused with one clear line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conformance.trace import file

from ..trainers.tasks import make_spec

VERSIONS = {"torch": "2.13.0"}


def event(rank, seq, **fields):
    at = {"rank": rank, "seq": seq, "time": 1.5, "window": None, "micro_batch": None, "where": None}
    return {"event": "loss_scaled", **at, "scaler": 0, "scale": 1024.0, **fields}


@pytest.fixture
def spec():
    return make_spec(world_size=2)


@pytest.fixture
def traces():
    return [[event(rank, seq, scale="inf", where=["é.py", 1, "f"]) for seq in range(3)] for rank in range(2)]


@pytest.fixture
def folder(tmp_path, spec, traces):
    folder = tmp_path / "traces" / "mine" / "case"
    file.write(folder, spec, traces, VERSIONS)
    return folder


def complaint(folder):
    with pytest.raises(file.TraceError) as caught:
        file.read(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_round_trip(folder, spec, traces):
    assert file.read(folder) == (spec, traces)
    assert sorted(path.name for path in folder.iterdir()) == ["rank0.jsonl", "rank1.jsonl"]
    assert (folder / "rank0.jsonl").read_bytes().isascii()
    header = json.loads((folder / "rank1.jsonl").read_text().splitlines()[0])
    assert {name: header[name] for name in header if name != "plan"} == {
        "kind": "trace",
        "schema_version": 1,
        "case": "by-hand",
        "rank": 1,
        "events": 3,
        "versions": VERSIONS,
    }


def test_an_empty_trace(tmp_path):
    """Of a rank that died before it said a word."""
    file.write(tmp_path, make_spec(), [[]], VERSIONS)
    assert file.read(tmp_path) == (make_spec(), [[]])


def test_it_is_written_anew(folder, spec):
    file.write(folder, spec, [[event(0, 0)], []], VERSIONS)
    assert file.read(folder) == (spec, [[event(0, 0)], []])


def test_what_a_file_leads_to_elsewhere_stays(folder, spec, tmp_path):
    elsewhere, place = tmp_path / "elsewhere", folder / "rank0.jsonl"
    elsewhere.write_text("mine")
    for link in (place.symlink_to, place.hardlink_to):
        place.unlink()
        link(elsewhere)
        file.write(folder, spec, [[event(0, 0)], []], VERSIONS)
        assert elsewhere.read_text() == "mine"
        assert file.read(folder) == (spec, [[event(0, 0)], []])


@pytest.mark.parametrize(
    ("trainer", "name"),
    [("ddp", "ddp"), ("my trainer", "my trainer"), ("a/b.py:train", "a%2Fb.py%3Atrain"), ("..", "%2E."), (".", "%2E")],
)
def test_folders(trainer, name):
    """Of whatever name a trainer has: below the folder, and different for different names."""
    assert file.folder_of(Path("traces"), trainer, "case") == Path("traces") / name / "case"


def test_cut_off(folder):
    """Within a line, and between two lines."""
    path = folder / "rank1.jsonl"
    whole = path.read_text()
    for cut in (whole[:-10], "".join(whole.splitlines(keepends=True)[:-1])):
        path.write_text(cut)
        assert complaint(folder) == f"{path} was cut off: 2 of 3 events are there"


def test_a_line_that_is_no_event_is_named(tmp_path):
    folder = tmp_path / "a case"
    file.write(folder, make_spec(), [[event(0, 0), event(0, 1, colour="red")]], VERSIONS)
    with pytest.raises(file.TraceError, match=r"rank0.jsonl: line 3: loss_scaled has an unknown field 'colour'"):
        file.read(folder)


@pytest.mark.parametrize("line", ["{}", "no JSON", "[1]", '{"event": "step", "seq": 7}'])
def test_a_damaged_line(folder, line):
    path = folder / "rank0.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:2], line, *lines[3:], ""]))
    assert complaint(folder) == f"{path}: line 3 is not the event that belongs there"


@pytest.mark.parametrize("text", ["", "\n", "hello\n", "{}\n", "[]\n", '{"kind": "header", "schema": 1}\n'])
def test_foreign_files(folder, text):
    """A results file among them."""
    path = folder / "rank0.jsonl"
    path.write_text(text)
    assert (
        complaint(folder) == f"{path} is not a trace of trainer-conformance: it does not begin with the header of one"
    )


def test_no_text(folder):
    path = folder / "rank0.jsonl"
    path.write_bytes(b"\x89PNG\r\n")
    assert complaint(folder) == f"{path} is not a trace of trainer-conformance: it is not ASCII text"


def test_another_version(folder):
    path = folder / "rank0.jsonl"
    path.write_text(path.read_text().replace('"schema_version": 1', '"schema_version": 2'))
    assert complaint(folder) == f"{path} has schema version 2, but this trainer-conformance reads version 1"


def test_a_rank_that_is_missing(folder):
    (folder / "rank1.jsonl").unlink()
    assert complaint(folder) == f"{folder}: rank1.jsonl is missing: the case has 2 ranks"


def test_a_rank_of_another_case(folder, spec, traces):
    kept = (folder / "rank0.jsonl").read_text()
    file.write(folder, {**spec, "steps": 7}, traces, VERSIONS)
    (folder / "rank0.jsonl").write_text(kept)
    assert complaint(folder) == f"{folder}: rank1.jsonl is of another case than rank0.jsonl"


def test_another_folder(folder, tmp_path):
    assert complaint(tmp_path / "nosuch") == f"{tmp_path / 'nosuch'}: no such folder"
    assert complaint(tmp_path) == (
        f"{tmp_path}: there is no rank0.jsonl in it; name the folder of one case, such as {folder}"
    )
    (tmp_path / "empty").mkdir()
    assert complaint(tmp_path / "empty") == f"{tmp_path / 'empty'}: there is no rank0.jsonl in it"
