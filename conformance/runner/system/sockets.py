"""Addresses of Unix sockets, which hold about a hundred bytes: too few for the paths of some temporary folders."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def short_name(path: str) -> Iterator[str]:
    """Another name for ``path``, short enough for a socket's address, if the system has one."""
    links = Path("/proc/self/fd")
    if not links.is_dir():
        yield path
        return
    folder = os.open(Path(path).parent, os.O_RDONLY)
    try:
        yield str(links / str(folder) / Path(path).name)
    finally:
        os.close(folder)
