"""Waits, before a rank leaves, for what Python itself waits for when it exits: threads and processes but daemons.

A rank's process leaves without Python's teardown, which would also run what libraries have registered for it.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Mapping
from multiprocessing import active_children, util
from typing import Any


def wait_for_the_rest(notify: Callable[[Mapping[str, Any]], object]) -> None:
    """Wait for them, after the trainer's function has returned; ``notify`` is told their names if there are any."""
    own = threading.current_thread()
    threads = [thread.name for thread in threading.enumerate() if thread is not own and not thread.daemon]
    processes = _processes()
    if threads or processes:
        notify({"event": "leaving", "waits_for": [*threads, *processes]})
    try:
        if threads:
            # Executors have idle threads, which end only when this tells them to.
            threading._shutdown()  # type: ignore[attr-defined]
        # A thread may have started others.
        if _processes():
            util._exit_function()  # type: ignore[attr-defined]
    except Exception:
        # So does Python, and goes on.
        traceback.print_exc()


def _processes() -> list[str]:
    return [child.name for child in active_children() if not child.daemon]
