"""Runs a command with a recorder in each of its processes, and judges what they write meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import conformance
from conformance.watch.judging.findings import Findings
from conformance.watch.judging.judge import Judge
from conformance.watch.reading import Reader
from conformance.watch.recording.settings import Settings

_PAUSE = 0.2
"""Seconds between two looks at what is new."""

_PATIENCE = 30.0
"""Seconds that a command has to end when it is asked to."""


@dataclass(frozen=True)
class Watched:
    """code: the command's exit code; None if it was ended. was_interrupted: by a signal to us."""

    code: int | None
    was_interrupted: bool
    findings: Findings


def watch(
    command: Sequence[str],
    see: Callable[[Judge], bool] = lambda judge: False,
    settings: Settings = Settings(),  # noqa: B008  # is frozen
) -> Watched:
    """Run a command to its end. `see` is called now and then with the judge of what came until then; if it is true,
    that is enough, and the command is ended. KeyboardInterrupt ends it, too.

    Raises OSError if it cannot be started.
    """
    judge = Judge()
    with tempfile.TemporaryDirectory(prefix="conformance-watch-") as folder:
        reader = Reader(Path(folder), judge)
        process = subprocess.Popen(command, env={**environment(folder, os.environ), **settings.variables()})
        code, was_interrupted = None, False
        error: Exception | None = None
        try:
            while code is None and not see(judge):
                try:
                    code = process.wait(_PAUSE)
                except subprocess.TimeoutExpired:
                    with _uninterrupted():
                        try:
                            reader.read()
                        except Exception as found:
                            # The script is to come to its end all the same.
                            error = found
                if error is not None:
                    process.wait()
                    raise error
        except KeyboardInterrupt:
            was_interrupted = True
        finally:
            _end(process)
        reader.finish()
        return Watched(code, was_interrupted, judge.finish(is_whole=code == 0))


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Signals wait until the end of the block: a record that is read is judged."""
    came: list[int] = []
    ending = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    # To block them would not do: the system hands them to another thread, if there is one.
    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in ending}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for one in came:
        signal.raise_signal(one)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Have it end, if it has not."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def environment(folder: str, given: Mapping[str, str]) -> dict[str, str]:
    """`given`, and what starts a recorder in each Python process."""
    home = Path(conformance.__file__).parent
    inject = str(home / "watch" / "inject")
    path = os.pathsep.join(filter(None, [inject, given.get("PYTHONPATH", "")]))
    return {**given, "PYTHONPATH": path, "CONFORMANCE_WATCH": folder, "CONFORMANCE_WATCH_HOME": str(home.parent)}
