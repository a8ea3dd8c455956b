"""Runs a command with a recorder in each of its processes, and judges what they write meanwhile."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import conformance
from conformance.watch.judging.findings import Findings
from conformance.watch.judging.judge import Judge
from conformance.watch.reading import Reader
from conformance.watch.recording.settings import Settings

_PAUSE = 0.2
"""Seconds between two looks at what is new."""


def watch(
    command: Sequence[str],
    see: Callable[[Findings], bool] = lambda findings: False,
    settings: Settings = Settings(),  # noqa: B008  # is frozen
) -> tuple[int, Findings]:
    """Run a command to its end. `see` is called now and then with what was found until then; if it is true, that is
    enough, and the command is ended.

    Returns its exit code, 0 if it was ended, and the findings. Raises OSError if it cannot be started.
    """
    judge = Judge()
    with tempfile.TemporaryDirectory(prefix="conformance-watch-") as folder:
        reader = Reader(Path(folder), judge)
        process = subprocess.Popen(command, env={**environment(folder, os.environ), **settings.variables()})
        try:
            while True:
                try:
                    process.wait(_PAUSE)
                    break
                except subprocess.TimeoutExpired:
                    reader.read()
                    if see(judge.findings):
                        process.terminate()
                        process.wait()
                        reader.finish()
                        return 0, judge.finish()
        except BaseException:
            process.terminate()
            process.wait()
            raise
        reader.finish()
        return process.returncode, judge.finish()


def environment(folder: str, given: Mapping[str, str]) -> dict[str, str]:
    """`given`, and what starts a recorder in each Python process."""
    home = Path(conformance.__file__).parent
    inject = str(home / "watch" / "inject")
    path = os.pathsep.join(filter(None, [inject, given.get("PYTHONPATH", "")]))
    return {**given, "PYTHONPATH": path, "CONFORMANCE_WATCH": folder, "CONFORMANCE_WATCH_HOME": str(home.parent)}
