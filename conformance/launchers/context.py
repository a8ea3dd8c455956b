"""What a launcher passes to each of its processes, and how the others find the process of rank 0."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from conformance.launchers import LaunchError
from conformance.launchers.agent import Member


@dataclass(frozen=True)
class LauncherContext:
    """One process's view of its launch.

    Attributes:
        member: this process. size: how many there are.
        address, port: where the process of rank 0 is to listen; port 0 for any.
        publish: rank 0 calls it with the address that it listens at. find: the others get that address from it.
    """

    member: Member
    size: int
    address: str
    port: int
    publish: Callable[[tuple[str, int]], None]
    find: Callable[[], tuple[str, int]]


class Read(Protocol):
    """Reads a `LauncherContext` from the environment of one of its processes. Raises LaunchError."""

    def __call__(self, environ: Mapping[str, str]) -> LauncherContext: ...


def number(environ: Mapping[str, str], name: str) -> int:
    """Raises LaunchError."""
    try:
        return int(environ[name])
    except ValueError as error:
        raise LaunchError(f"{name} is {environ[name]!r}, but must be a whole number; the launcher sets it") from error


def format_address(address: tuple[str, int]) -> str:
    return f"{address[0]}:{address[1]}"


def parse_address(text: str) -> tuple[str, int]:
    """The inverse of `format_address`."""
    host, _, port = text.rpartition(":")
    return host, int(port)
