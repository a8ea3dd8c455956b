"""Removes paths of this machine from what trainers print, because reports are published."""

from __future__ import annotations

import os
import sysconfig

#: The folders of Python's library and of installed packages.
LIBRARIES = frozenset(sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib"))


def shortened(text: str) -> str:
    """``text`` with the paths of installed packages, of Python's library and of the working folder made relative."""
    # Inner folders before outer ones.
    for path in sorted(LIBRARIES | {os.getcwd()}, key=len, reverse=True):
        if path != os.sep:
            text = text.replace(path.rstrip(os.sep) + os.sep, "")
    return text
