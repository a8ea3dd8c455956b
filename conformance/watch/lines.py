"""Records as lines of files, which a recorder writes one after the other, so that what is read can be removed."""

from __future__ import annotations

# The functions are bound as they were before a script could replace them.
import json
from base64 import b64decode, b64encode
from dataclasses import fields
from pathlib import Path

from numpy import asarray, float64, frombuffer

from conformance.watch.records import Record

MOST_BYTES = 16 * 2**20
"""In a file, before the next one starts."""

_encode = json.JSONEncoder(separators=(",", ":")).encode

_KINDS = {kind.__name__: kind for kind in Record.__subclasses__()}
_FIELDS = {kind: [one.name for one in fields(kind)] for kind in _KINDS.values()}
SKETCHES = {kind: [one.name for one in fields(kind) if one.type == "Sketches"] for kind in _KINDS.values()}
"""The names of the fields of each kind that are sketches."""


def encoded(record: Record) -> str:
    """The record's line. Its sketches are on the CPU."""
    kind = type(record)
    values = {name: getattr(record, name) for name in _FIELDS[kind]}
    for name in SKETCHES[kind]:
        values[name] = b64encode(asarray(values[name], dtype=float64).tobytes()).decode("ascii")
    return _encode([kind.__name__, *values.values()]) + "\n"


def decoded(line: bytes) -> Record:
    """Raises ValueError if the line is none of `encoded`'s. Fields that other versions have behind are left out."""
    try:
        name, *values = json.loads(line.decode("ascii"))
        kind = _KINDS[name]
        record: Record = kind(*values[: len(_FIELDS[kind])])
        for sketch in SKETCHES[type(record)]:
            setattr(record, sketch, frombuffer(b64decode(getattr(record, sketch), validate=True)).reshape(-1, 3))
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"it is no record: {error}") from error
    return record


def part(folder: str | Path, stem: str, number: int) -> Path:
    """The path of a file of the process whose account has this stem."""
    return Path(folder, f"{stem}.{number}.jsonl")
