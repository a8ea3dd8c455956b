"""Writes and reads trace files: a folder per case, a file of JSON lines per rank. TRACE.md describes them.

Imports no torch, because judging and showing a trace do not need it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

from conformance.trace.events import MalformedEvent, check
from conformance.trace.lives import as_resumed

SCHEMA_VERSION = 1

Spec: TypeAlias = dict[str, Any]
Trace: TypeAlias = list[dict[str, Any]]


class TraceError(Exception):
    """A trace cannot be read. `str()` is one line that names the file and the reason."""


def folder_of(traces: Path, trainer: str, case: str) -> Path:
    """The folder of a case's trace, below `traces`. The trainer's name may be a path or contain any character."""
    name = quote(trainer, safe=" ")
    return traces / (f"%2E{name[1:]}" if name.startswith(".") else name) / case


def write(folder: Path, spec: Spec, ranks: Sequence[Sequence[Mapping[str, Any]]], versions: Mapping[str, str]) -> None:
    """Write the events of each rank of the case in `spec`, with the `versions` of the packages it used.

    Raises OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for rank, events in enumerate(ranks):
        header = {
            "kind": "trace",
            "schema_version": SCHEMA_VERSION,
            "case": spec["case"],
            "rank": rank,
            "events": len(events),
            "versions": dict(versions),
            "plan": spec,
        }
        lines = [json.dumps(line, allow_nan=False) + "\n" for line in (header, *events)]
        file = _file(folder, rank)
        # An existing link would redirect the write.
        file.unlink(missing_ok=True)
        with file.open("x", encoding="ascii") as opened:
            opened.writelines(lines)


def read(folder: Path) -> tuple[Spec, list[Trace]]:
    """The spec of the case, and the events of each rank.

    Raises TraceError.
    """
    if not _file(folder, 0).is_file():
        raise TraceError(_nothing_in(folder))
    first, events = _read(_file(folder, 0))
    ranks = [events]
    size = first["plan"]["world_size"]
    for rank in range(1, max(size, as_resumed(first["plan"])["world_size"])):
        file = _file(folder, rank)
        # The case may have failed before it was resumed on more ranks.
        if not file.is_file() and rank >= size:
            break
        if not file.is_file():
            raise TraceError(f"{folder}: {file.name} is missing: the case has {size} ranks")
        header, events = _read(file)
        if header["plan"] != first["plan"]:
            raise TraceError(f"{folder}: {file.name} and {_file(folder, 0).name} are from different cases")
        ranks.append(events)
    return first["plan"], ranks


def _file(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.jsonl"


def _nothing_in(folder: Path) -> str:
    if not folder.is_dir():
        return f"{folder}: no such folder"
    name = _file(folder, 0).name
    below = min(folder.glob(f"**/{name}"), default=None)
    hint = "" if below is None else f"; name the folder of one case, such as {below.parent}"
    return f"{folder} has no {name}{hint}"


def _read(file: Path) -> tuple[dict[str, Any], Trace]:
    """The header of a file and its events."""
    no_trace = f"{file} is not a trace of trainer-conformance"
    try:
        text = file.read_text(encoding="ascii")
    except OSError as error:
        raise TraceError(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{no_trace}: it is not ASCII text") from error
    lines = text.splitlines()
    header = _object(lines[0]) if lines else None
    if header is None or header.get("kind") != "trace":
        raise TraceError(f"{no_trace}: the header is missing")
    if header.get("schema_version") != SCHEMA_VERSION:
        raise TraceError(
            f"{file} has schema version {header.get('schema_version')!r}, but this trainer-conformance reads version "
            f"{SCHEMA_VERSION}"
        )
    if not text.endswith("\n"):
        lines.pop()
    events: Trace = []
    for number, line in enumerate(lines[1:], start=2):
        event = _object(line)
        if event is None or event.get("seq") != len(events):
            raise TraceError(f"{file}: line {number} is not event {len(events)}")
        try:
            check(event)
        except MalformedEvent as error:
            raise TraceError(f"{file}: line {number}: {error}") from None
        events.append(event)
    if len(events) != header["events"]:
        raise TraceError(f"{file} is truncated: it has {len(events)} of {header['events']} events")
    return header, events


def _object(text: str) -> dict[str, Any] | None:
    try:
        line = json.loads(text)
    except ValueError:
        return None
    return line if isinstance(line, dict) else None
