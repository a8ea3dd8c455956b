"""Records as lines of a file."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from dataclasses import fields

import numpy as np

from conformance.watch.records import Record

_KINDS = {kind.__name__: kind for kind in Record.__subclasses__()}
_FIELDS = {kind: [one.name for one in fields(kind)] for kind in _KINDS.values()}
SKETCHES = {kind: [one.name for one in fields(kind) if one.type == "Sketches"] for kind in _KINDS.values()}
"""The names of the fields of each kind that are sketches."""


def encoded(record: Record) -> str:
    """The record's line. Its sketches are on the CPU."""
    kind = type(record)
    values = {name: getattr(record, name) for name in _FIELDS[kind]}
    for name in SKETCHES[kind]:
        values[name] = b64encode(np.asarray(values[name], dtype=np.float64).tobytes()).decode("ascii")
    return json.dumps([kind.__name__, *values.values()], separators=(",", ":")) + "\n"


def decoded(line: str) -> Record:
    """Raises ValueError if the line is none of `encoded`'s."""
    name, *values = json.loads(line)
    if name not in _KINDS:
        raise ValueError(f"there is no record {name!r}")
    record: Record = _KINDS[name](*values)
    for name in SKETCHES[type(record)]:
        setattr(record, name, np.frombuffer(b64decode(getattr(record, name))).reshape(-1, 3))
    return record
