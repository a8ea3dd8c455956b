"""Merges several results files into one, such as those of CI jobs with one backend each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from .reader import Results, ResultsError
from .result_lines import Header, Mutants

#: What all files must share: results of other versions or laws are not comparable.
_SAME = ("tool", "version", "seed", "laws", "bugs")


def merged(files: Sequence[tuple[Path, Results]], command: str) -> Results:
    """All cases of `files`, in this order, under one header. ``command``: the command that merges them.

    Raises:
        ResultsError: a file lacks planned cases, which the merged file would hide; two files come from other versions
            of the tool, or use other laws; or two files have the same case.
    """
    first, header = files[0][0], files[0][1].header
    seen: dict[tuple[str, str, str], Path] = {}
    for path, results in files:
        if results.cut_off is not None:
            raise ResultsError(f"{path}: {results.cut_off}; finish it with `conformance run --resume`, or leave it out")
        for name in _SAME:
            if getattr(results.header, name) != getattr(header, name):
                raise ResultsError(f"{path} and {first} differ in the {name} of their runs; run both with one version")
        for case in results.cases:
            key = case.target, case.trainer, case.id
            if key in seen:
                raise ResultsError(
                    f"{path} and {seen[key]} both have the case {case.id} of {case.trainer}; leave one out"
                )
            seen[key] = path
    cases = tuple(case for _, results in files for case in results.cases)
    rows = {row.mutant: row for _, results in files if results.mutants for row in results.mutants.rows}
    mutants = Mutants(tuple(rows.values())) if rows else None
    return Results(_header([results.header for _, results in files], command, len(cases)), cases, mutants=mutants)


def _header(headers: Sequence[Header], command: str, planned: int) -> Header:
    names = dict.fromkeys(name for header in headers for name in header.machine)
    return replace(
        headers[0],
        command=command,
        started=min(header.started for header in headers),
        planned=planned,
        machine={
            name: _common([header.machine[name] for header in headers if name in header.machine]) for name in names
        },
        sources={trainer: files for header in headers for trainer, files in header.sources.items()},
        notes=tuple(dict.fromkeys(note for header in headers for note in header.notes)),
    )


def _common(values: Sequence[str | int | float | bool | None]) -> str | int | float | bool | None:
    """The value that all share, or a list of all values."""
    different = list(dict.fromkeys(values))
    return different[0] if len(different) == 1 else " or ".join(map(str, different))
