"""The names of the files that a recorder writes one after the other, so that what is read can be removed."""

from __future__ import annotations

from pathlib import Path

MOST_BYTES = 16 * 2**20
"""In a file, before the next one is begun."""


def first_part(folder: Path, process: int) -> Path:
    return folder / f"{process}.0.jsonl"


def following_part(path: Path) -> Path:
    process, number, ending = path.name.split(".")
    return path.with_name(f"{process}.{int(number) + 1}.{ending}")
