"""Removes paths of this machine from what trainers print, because reports are published."""

from __future__ import annotations

import os
import sysconfig
from functools import cache


def shortened(text: str) -> str:
    """``text`` with the paths of installed packages, of Python's library and of the working folder made relative."""
    for folder in _folders():
        text = text.replace(folder, "")
    return text


def _folders() -> list[str]:
    """With a separator at the end; inner folders before outer ones."""
    paths = _libraries() | {os.getcwd()}
    return sorted((path.rstrip(os.sep) + os.sep for path in paths if path != os.sep), key=len, reverse=True)


@cache
def _libraries() -> frozenset[str]:
    return frozenset(sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib"))
