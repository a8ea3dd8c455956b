"""What a launcher passes to each of its processes, and how the others find the process of rank 0."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from conformance.launchers import LaunchError
from conformance.launchers.agent import Member
from conformance.launchers.network import FrontAddress
from conformance.trace.words import enumerated


@dataclass(frozen=True)
class LauncherContext:
    """One process's view of its launch.

    Attributes:
        member: this process. size: how many there are.
        at: where the process of rank 0 is to listen; port 0 for any.
        publish: rank 0 calls it with the address that it listens at. find: the others get that address from it.
    """

    member: Member
    size: int
    at: FrontAddress
    publish: Callable[[FrontAddress], None]
    find: Callable[[], FrontAddress]


def require(environ: Mapping[str, str], names: Sequence[str], launcher: str, start: str) -> None:
    """Raises LaunchError if one of the variables is not set; ``start`` is a command that sets them."""
    missing = [name for name in names if name not in environ]
    if missing:
        be = "is" if len(missing) == 1 else "are"
        raise LaunchError(
            f"--launcher {launcher}: {enumerated(missing)} {be} not set in the environment, so this process was not "
            f"started by {launcher}; start it with: {start}"
        )


def number(environ: Mapping[str, str], name: str) -> int:
    """Raises LaunchError."""
    try:
        return int(environ[name])
    except ValueError as error:
        raise LaunchError(f"{name} is {environ[name]!r}, but must be a whole number; the launcher sets it") from error
