"""The descriptions of a trace agree with each other, and with real traces: events.py, trace-schema.json, TRACE.md."""

from __future__ import annotations

import json
import re
from importlib.resources import files

import pytest
from jsonschema import Draft202012Validator

from conformance.runner.front.client import ForkServer
from conformance.trace import file
from conformance.trace.events import KINDS

from ..trainers.tasks import make_spec, overflowing, scaler

FOLDER = files("conformance.trace")
SCHEMA = json.loads(FOLDER.joinpath("trace-schema.json").read_text(encoding="utf-8"))
WORDS = FOLDER.joinpath("TRACE.md").read_text(encoding="utf-8")
HEAD = set(SCHEMA["$defs"]["event"]["properties"])
validator = Draft202012Validator(SCHEMA)

PATHS = {
    "accumulated": overflowing(accumulation=2, size=4),
    "batched": make_spec(clip={"kind": "norm", "threshold": 1.0}, schedule=[1.0, 0.5]),
    "ddp": make_spec(backend="ddp", accumulation=2, size=2, world_size=2, precision="bf16"),
    "horovod": make_spec(backend="horovod", accumulation=2, size=2, world_size=2),
    "parameter_server": make_spec(backend="parameter-server", size=4, world_size=2, precision="fp16", scaler=scaler()),
    "ring": make_spec(backend="ring", accumulation=2, size=1, world_size=4),
}


def described(kind):
    """The fields of a kind in `KINDS`."""
    text = KINDS[kind]
    return set(text[text.index("{") + 1 : text.index("}")].replace(" ", "").split(",")) - {""}


def rows(section):
    """The rows of a table, cell by cell."""
    lines = WORDS.split(f"\n## {section}\n")[1].split("\n## ")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| `")]


def names(cell):
    """The fields that a cell is about: what comes first in each part of it."""
    parts = (re.match(r"^[^`]*((?:`\w+`(?: \*)?(?:, )?)+)", part.strip()) for part in cell.split(";"))
    return {name for part in parts if part for name in re.findall(r"`(\w+)`", part[1])}


def kinds_in_schema():
    refs = [entry["$ref"].rpartition("/")[2] for entry in SCHEMA["oneOf"]]
    return refs[1:]


def test_the_schema_is_a_json_schema():
    Draft202012Validator.check_schema(SCHEMA)


def test_kinds():
    assert set(kinds_in_schema()) == set(KINDS)
    assert {kind for cells in rows("Kinds") for kind in re.findall(r"`(\w+)`", cells[0])} == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_fields(kind):
    """The same in all three."""
    fields = set(SCHEMA["$defs"][kind]["properties"]) - {"event"}
    assert fields == described(kind)
    [cell] = [cells[2] for cells in rows("Kinds") if f"`{kind}`" in cells[0]]
    assert names(cell) == fields


def test_head():
    assert {name for cells in rows("Every event") for name in re.findall(r"`(\w+)`", cells[0])} == HEAD
    header = set(SCHEMA["$defs"]["trace"]["properties"])
    assert {name for cells in rows("The header") for name in re.findall(r"`(\w+)`", cells[0])} == header


@pytest.mark.parametrize("path", PATHS)
def test_real_traces_are_valid(path, tmp_path):
    spec = PATHS[path]
    with ForkServer(path, backend=spec["backend"]) as server:
        outcome = server.run(spec, time_limit=60.0)
        file.write(tmp_path, spec, [rank.events for rank in outcome.ranks], server.versions)
    assert all(rank.finished for rank in outcome.ranks)
    assert file.read(tmp_path) == (spec, [list(rank.events) for rank in outcome.ranks])
    for rank in range(spec["world_size"]):
        for line in (tmp_path / f"rank{rank}.jsonl").read_text().splitlines():
            errors = list(validator.iter_errors(json.loads(line)))
            assert errors == [], line


def test_other_lines_are_invalid():
    event = {"event": "no_sync_enter", "rank": 0, "seq": 0, "time": 0.5, "window": None, "micro_batch": None}
    assert validator.is_valid({**event, "where": ["train.py", 3, "train"]})
    assert not validator.is_valid(event)
    assert not validator.is_valid({**event, "where": None, "surprise": 1})
    assert not validator.is_valid({**event, "where": None, "event": "surprise"})
    assert not validator.is_valid({**event, "where": ["train.py", 3]})
