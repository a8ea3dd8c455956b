"""The names of the files that a recorder writes one after the other, so that what is read can be removed."""

from __future__ import annotations

from pathlib import Path

MOST_BYTES = 16 * 2**20
"""In a file, before the next one starts."""


def part(folder: str | Path, stem: str, number: int) -> Path:
    """The path of a file of the process whose account has this stem."""
    return Path(folder, f"{stem}.{number}.jsonl")
