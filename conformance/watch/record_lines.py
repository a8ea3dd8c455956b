"""Encodes records as lines of files. A recorder writes them to several files in turn; the reader removes those read."""

from __future__ import annotations

# Bound before a script can patch them.
import json
from base64 import b64decode, b64encode
from dataclasses import fields
from pathlib import Path
from typing import Any

from numpy import asarray, float64, frombuffer

from conformance.watch.records import Record

MOST_BYTES = 16 * 2**20
"""Size of a file after which the next one starts."""

_encode = json.JSONEncoder(separators=(",", ":")).encode
_decoder = json.JSONDecoder()

_KINDS = {kind.__name__: kind for kind in Record.__subclasses__()}
_FIELDS = {kind: [one.name for one in fields(kind)] for kind in _KINDS.values()}
SKETCHES = {kind: [one.name for one in fields(kind) if one.type == "Sketches"] for kind in _KINDS.values()}
"""The names of the sketch fields of each kind of record."""


def encoded(record: Record) -> str:
    """The line of a record, whose sketches must be on the CPU."""
    kind = type(record)
    values = {name: getattr(record, name) for name in _FIELDS[kind]}
    for name in SKETCHES[kind]:
        values[name] = b64encode(asarray(values[name], dtype=float64).tobytes()).decode("ascii")
    return _encode([kind.__name__, *values.values()]) + "\n"


def decoded(line: bytes) -> Record:
    """The record of a line, without trailing fields of other versions. Raises ValueError if the line is no record."""
    try:
        name, *values = _parsed(line.decode("ascii"))
        kind = _KINDS[name]
        record: Record = kind(*values[: len(_FIELDS[kind])])
        for sketch in SKETCHES[kind]:
            setattr(record, sketch, frombuffer(b64decode(getattr(record, sketch), validate=True)).reshape(-1, 3))
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"invalid record: {error}") from error
    return record


def _parsed(text: str) -> Any:
    """The value of a text in JSON. That of a line of `encoded` needs no search for blanks around it."""
    if text.startswith("["):
        value, end = _decoder.raw_decode(text)
        if text[end:] == "\n":
            return value
    return _decoder.decode(text)


def part(folder: str | Path, stem: str, number: int) -> Path:
    """The path of a numbered file of the process whose account has this stem."""
    return Path(folder, f"{stem}.{number}.jsonl")
