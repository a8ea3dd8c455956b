"""trace-schema.json and TRACE.md, generated from the classes of events, are up to date and fit real traces."""

from __future__ import annotations

import json
import re

import pytest
from jsonschema import Draft202012Validator

from conformance.runner.front.client import ForkServer
from conformance.trace import file
from conformance.trace.events import check_all
from tools.trace_schema import SCHEMA, WORDS, schema, schema_text, words

from ..trainers.tasks import make_spec, overflowing, scaler

validator = Draft202012Validator(schema())

PATHS = {
    "accumulated": overflowing(accumulation=2, size=4),
    "batched": make_spec(clip={"kind": "norm", "threshold": 1.0}, schedule=[1.0, 0.5]),
    "ddp": make_spec(backend="ddp", accumulation=2, size=2, world_size=2, precision="bf16"),
    "horovod": make_spec(backend="horovod", accumulation=2, size=2, world_size=2),
    "fsdp2": make_spec(backend="fsdp2", accumulation=2, size=2, world_size=2, precision="fp16", scaler=scaler()),
    "parameter_server": make_spec(backend="parameter-server", size=4, world_size=2, precision="fp16", scaler=scaler()),
    "ring": make_spec(backend="ring", accumulation=2, size=1, world_size=4),
}


def rows(section):
    """The rows of a table, cell by cell."""
    lines = WORDS.read_text().split(f"\n## {section}\n")[1].split("\n## ")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| `")]


def test_the_schema_is_a_json_schema():
    Draft202012Validator.check_schema(schema())


@pytest.mark.parametrize(("path", "text"), [(SCHEMA, schema_text()), (WORDS, words(WORDS.read_text()))])
def test_generated_files_are_up_to_date(path, text):
    assert path.read_text() == text, "python -m tools.trace_schema"


def test_the_header_is_described():
    header = set(schema()["$defs"]["trace"]["properties"])
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
        check_all(outcome.ranks[rank].events, rank)


def test_other_lines_are_invalid():
    event = {"event": "no_sync_enter", "rank": 0, "seq": 0, "time": 0.5, "window": None, "micro_batch": None}
    assert validator.is_valid({**event, "where": ["train.py", 3, "train"]})
    assert not validator.is_valid(event)
    assert not validator.is_valid({**event, "where": None, "surprise": 1})
    assert not validator.is_valid({**event, "where": None, "event": "surprise"})
    assert not validator.is_valid({**event, "where": ["train.py", 3]})
