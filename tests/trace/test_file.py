"""Trace files are read as they were written; a damaged file is one clear line."""

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
    """The trace of a rank that died before its first event."""
    file.write(tmp_path, make_spec(), [[]], VERSIONS)
    assert file.read(tmp_path) == (make_spec(), [[]])


def test_a_trace_is_replaced(folder, spec):
    file.write(folder, spec, [[event(0, 0)], []], VERSIONS)
    assert file.read(folder) == (spec, [[event(0, 0)], []])


def test_the_target_of_a_link_stays_unchanged(folder, spec, tmp_path):
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
    """For any name of a trainer: below the folder, and different for different names."""
    assert file.folder_of(Path("traces"), trainer, "case") == Path("traces") / name / "case"


def with_line(number, line):
    """Replaces a line in the text of a trace."""
    return lambda text: "\n".join(line if at == number else one for at, one in enumerate(text.split("\n"), 1))


NO_TRACE = "{} is not a trace of trainer-conformance"
#: Changes of a file's text, each with the error.
DAMAGES = [
    # Truncated within a line, and between two lines.
    (lambda text: text[:-10], "{} is truncated: it has 2 of 3 events"),
    (lambda text: text[: text[:-1].rindex("\n") + 1], "{} is truncated: it has 2 of 3 events"),
    *(
        (with_line(3, line), "{}: line 3 is not event 1")
        for line in ("{}", "no JSON", "[1]", '{"event": "step", "seq": 7}')
    ),
    (with_line(3, json.dumps(event(0, 1, colour="red"))), "{}: line 3: loss_scaled has an unknown field 'colour'"),
    # Files without the header, including a results file.
    *(
        (lambda _, text=text: text, f"{NO_TRACE}: the header is missing")
        for text in ("", "\n", "hello\n", "{}\n", "[]\n", '{"kind": "header", "schema": 1}\n')
    ),
    (lambda _: "\x89PNG\r\n", f"{NO_TRACE}: it is not ASCII text"),
    (
        lambda text: text.replace('"schema_version": 1', '"schema_version": 2'),
        "{} has schema version 2, but this trainer-conformance reads version 1",
    ),
]


@pytest.mark.parametrize(("change", "says"), DAMAGES)
def test_a_file_that_cannot_be_read(folder, change, says):
    path = folder / "rank0.jsonl"
    path.write_bytes(change(path.read_text()).encode("latin-1"))
    assert complaint(folder) == says.replace("{}", str(path))


def test_a_rank_that_is_missing(folder):
    (folder / "rank1.jsonl").unlink()
    assert complaint(folder) == f"{folder}: rank1.jsonl is missing: the case has 2 ranks"


def test_a_rank_of_another_case(folder, spec, traces):
    kept = (folder / "rank0.jsonl").read_text()
    file.write(folder, {**spec, "steps": 7}, traces, VERSIONS)
    (folder / "rank0.jsonl").write_text(kept)
    assert complaint(folder) == f"{folder}: rank1.jsonl and rank0.jsonl are from different cases"


def test_another_folder(folder, tmp_path):
    assert complaint(tmp_path / "nosuch") == f"{tmp_path / 'nosuch'}: no such folder"
    assert complaint(tmp_path) == (f"{tmp_path} has no rank0.jsonl; name the folder of one case, such as {folder}")
    (tmp_path / "empty").mkdir()
    assert complaint(tmp_path / "empty") == f"{tmp_path / 'empty'} has no rank0.jsonl"
