"""SIGTERM and SIGHUP end a run like Ctrl-C: it stops, and writes down what was finished."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def ended_like_ctrl_c() -> Iterator[None]:
    """The first of these signals raises KeyboardInterrupt; later ones must not keep the report from being written.

    What `nohup` ignores stays ignored.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        ignore()
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in (*_ENDING, signal.SIGINT)}
    for number in _ENDING:
        if before[number] is not signal.SIG_IGN:
            signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ignore(*more: signal.Signals) -> None:
    """Let these signals, and ``more``, do nothing more in the block above: the run ends in any case."""
    for number in (*_ENDING, *more):
        # With SIG_IGN, Python would complain of a signal that has arrived just before.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
