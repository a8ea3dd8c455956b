"""The descriptions of a results file agree: the records, and schema.json and SCHEMA.md, generated from them."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from conformance.cli import outputs
from conformance.results.plain import ShapeError, record
from conformance.results.result_lines import KINDS
from tools import results_schema as schema

SCHEMA = json.loads(schema.SCHEMA.read_text(encoding="utf-8"))
PROBES: list[Any] = [None, "text", "nan", 1, 1.5, True, [], [1], ["text"], {}, {"a": 1}, {"a": "text"}]
validator = Draft202012Validator(SCHEMA)


def is_valid(line: dict[str, Any]) -> bool:
    return bool(validator.is_valid(line))


def is_read(line: dict[str, Any]) -> bool:
    content = {key: value for key, value in line.items() if key not in ("kind", "schema")}
    try:
        record(KINDS[line["kind"]], content)
    except ShapeError:
        return False
    return True


def shortened(value: Any) -> Any:
    """`value` with only the first item of each list of containers: the others have the same shape."""
    if isinstance(value, dict):
        return {key: shortened(entry) for key, entry in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], dict | list):
        return [shortened(value[0])]
    return value


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in `value` with each of its keys, but only the first item of a list."""
    keys = value.keys() if isinstance(value, dict) else range(min(len(value), 1))
    for key in list(keys):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from places(value[key])


def test_what_the_writer_writes_is_valid(results_file: Path) -> None:
    Draft202012Validator.check_schema(SCHEMA)
    lines = [json.loads(line) for line in results_file.read_text().splitlines()]
    assert {line["kind"] for line in lines} == set(KINDS)
    assert [line for line in lines if not is_valid(line)] == []


def test_the_schema_is_written_from_the_records() -> None:
    """Otherwise run: python -m tools.results_schema."""
    assert schema.SCHEMA.read_text(encoding="utf-8") == schema.in_json()
    assert schema.WORDS.read_text(encoding="utf-8") == schema.in_markdown()
    for kind in outputs.KINDS:
        assert (schema.OUTPUTS / f"{kind}.json").read_text(encoding="utf-8") == schema.of_output(kind)


def test_reader_and_schema_refuse_the_same_values(results_file: Path) -> None:
    """With values of every kind in every place of a line, both accept the line or both refuse it."""
    lines = [json.loads(line) for line in results_file.read_text().splitlines()]
    full = next(line for line in lines if line.get("first_difference") and line["trainer"] == "my_loop")
    apart = next(line for line in lines if line.get("diverged"))
    full |= {"diverged": apart["diverged"], "scales": [1024.0], "skips": [0], "notes": ["a"]}
    samples = [lines[0], full, *(line for line in lines if line["kind"] in ("mutants", "footer"))]
    tried = 0
    for sample in samples:
        changed = shortened(copy.deepcopy(sample))
        assert is_valid(changed)
        for container, key in places(changed):
            if key in ("kind", "schema"):
                continue
            before = container[key]
            for probe in PROBES:
                container[key] = probe
                assert is_valid(changed) == is_read(changed), (key, probe)
                tried += 1
            container[key] = before
    assert tried > 1000


def test_absent_and_unknown_fields_are_refused_alike(results_file: Path) -> None:
    line = json.loads(results_file.read_text().splitlines()[1])
    for key in set(line) - {"kind"}:
        less = {name: value for name, value in line.items() if name != key}
        assert is_valid(less) == is_read(less), key
    more = line | {"surprise": 1}
    assert not is_valid(more)
    assert not is_read(more)
