"""How a command ends: its exit code, and one line on standard error if something is wrong."""

from __future__ import annotations

import sys

from conformance.report.text import one_line

CONFORMING, NOT_CONFORMING, USAGE, HARNESS, UNDECIDED, INTERRUPTED = 0, 1, 2, 3, 4, 130


def say(line: str, code: int) -> int:
    """Print a line, whatever is in it; the result is the exit code."""
    print(f"conformance: {one_line(line)}", file=sys.stderr)
    return code
