"""Cases on several machines: which launcher starts our processes there, and how they find each other."""

from __future__ import annotations

#: What `--launcher` takes.
NAMES = ("torchrun", "horovodrun", "ray")


class LaunchError(Exception):
    """The processes of a launch cannot connect: one line that says why, and what to do."""
