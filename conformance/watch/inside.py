"""Watches what this process does within a block, for a test of one's own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conformance.watch.judging.findings import Findings
from conformance.watch.judging.judge import Judge
from conformance.watch.reading import Reader
from conformance.watch.recording.settings import Settings
from conformance.watch.recording.start import recorded
from conformance.watch.report.digest import lines
from conformance.watch.verdict import verdict


@contextmanager
def watching() -> Iterator[Findings]:
    """Watch the optimizers that are made and stepped in this block, in this process.

    What was found is in the result when the block is left. Raises AssertionError there if it does not conform or is
    undecided, unless the block itself raised.
    """
    judge = Judge()
    with tempfile.TemporaryDirectory(prefix="conformance-watch-") as folder:
        with recorded(folder, Settings()):
            yield judge.findings
        Reader(Path(folder), judge).finish()
    findings = judge.finish()
    if verdict(findings) != "CONFORMS":
        raise AssertionError("\n".join(lines(findings)))
