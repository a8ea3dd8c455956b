"""Runs cases on several machines: the launchers that start processes there, and how these connect."""

from __future__ import annotations

#: The values of `--launcher`.
NAMES = ("torchrun", "horovodrun", "ray")


class LaunchError(Exception):
    """The processes of a launch cannot connect. `str()` is one line with the reason and what to do."""
