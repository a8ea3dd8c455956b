"""`conformance.run`: `conformance run` from Python."""

from __future__ import annotations

import inspect
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import fields
from os import fspath
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from conformance import results
from conformance.report.html import framed, render_html

if TYPE_CHECKING:
    from conformance.adapter.task import Task

Trainer: TypeAlias = "str | Path | Callable[[Task], None]"


class Results(results.Results):
    """The results of a run. Notebooks show its report."""

    def _repr_html_(self) -> str:
        with tempfile.TemporaryDirectory(prefix="conformance-page-") as folder:
            file = Path(folder, "page.html")
            render_html(self, file)
            return framed(file.read_text(encoding="utf-8"))


class RunError(Exception):
    """Nothing was judged. `str()` is the line that the command prints."""


def run(
    *trainers: Trainer,
    backend: Iterable[str] = (),
    case: Iterable[str] = (),
    thorough: bool = False,
    time_limit: float | None = None,
    processes: int | None = None,
    output: str | Path | None = None,
) -> Results:
    """Run the cases of these trainers in separate processes, as `conformance run` does with the same options.

    trainers: targets such as "my_trainer.py", or functions under `@trainer` in a file. Without any: the trainers in
    pyproject.toml, else the reference trainers. output: the folder for the results file and the report; None keeps
    neither. Raises RunError.
    """
    options = {"--time-limit": time_limit, "--processes": processes}
    words = [*map(_target, trainers), "--quiet", *(["--thorough"] if thorough else [])]
    words += [f"--backend={one}" for one in backend] + [f"--case={one}" for one in case]
    words += [f"{name}={value}" for name, value in options.items() if value is not None]
    with tempfile.TemporaryDirectory(prefix="conformance-run-") as temporary:
        folder = Path(temporary if output is None else output)
        command = [sys.executable, "-m", "conformance", "run", *words, f"--output={folder}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode not in (0, 1):
            raise RunError(done.stderr.strip().removeprefix("conformance: "))
        found = results.read_results(folder / "conformance-results.jsonl")
    return Results(*(getattr(found, field.name) for field in fields(found)))


def _target(trainer: Trainer) -> str:
    if not callable(trainer):
        return fspath(trainer)
    try:
        file = Path(inspect.getfile(trainer))
    except TypeError:  # built in
        file = Path()
    if not file.is_file():
        raise RunError(f"{trainer.__name__} is in no file; write the trainer to a file and pass its path")
    return f"{file}:{trainer.__name__}"
