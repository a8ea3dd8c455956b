"""Processes that horovodrun started, over gloo; they meet at its rendezvous, a key-value store over HTTP."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from time import monotonic, sleep
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from conformance.launchers import LaunchError
from conformance.launchers.agent import JOIN_LIMIT, Member
from conformance.launchers.context import LauncherContext, number, require
from conformance.launchers.network import FrontAddress, address_towards

_NAMES = (
    *("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_HOSTNAME"),
    *("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"),
)
# Seconds.
_PAUSE = 0.1
_REQUEST_LIMIT = 10.0
_NOT_FOUND = 404


def read(environ: Mapping[str, str]) -> LauncherContext:
    """Raises LaunchError."""
    start = "horovodrun --gloo -np ... conformance run --launcher horovodrun ..."
    require(environ, _NAMES, "horovodrun", start)
    # The user named the hosts, so their names are unique.
    member = Member(number(environ, "HOROVOD_RANK"), environ["HOROVOD_HOSTNAME"], environ["HOROVOD_HOSTNAME"])
    store = environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"], number(environ, "HOROVOD_GLOO_RENDEZVOUS_PORT")
    url = f"http://{store[0]}:{store[1]}/conformance/front"

    def publish(address: FrontAddress) -> None:
        _ask(Request(url, data=str(address).encode(), method="PUT"), store)

    def find() -> FrontAddress:
        deadline = monotonic() + JOIN_LIMIT
        while (found := _ask(Request(url), store)) is None:
            if monotonic() > deadline:
                raise LaunchError(f"the process of rank 0 did not publish its address within {JOIN_LIMIT:g} s")
            sleep(_PAUSE)
        return FrontAddress.parse(found)

    at = FrontAddress(address_towards(*store), 0, secrets.token_hex(16))
    return LauncherContext(member, number(environ, "HOROVOD_SIZE"), at, publish, find)


def _ask(request: Request, store: tuple[str, int]) -> str | None:
    """The answer; None if there is no such key yet. Raises LaunchError."""
    where = f"horovodrun's rendezvous at {store[0]}:{store[1]}"
    try:
        with urlopen(request, timeout=_REQUEST_LIMIT) as answer:
            return str(answer.read().decode())
    except HTTPError as error:
        if error.code == _NOT_FOUND:
            return None
        raise LaunchError(f"{where} answered with HTTP status {error.code}") from error
    except (URLError, OSError) as error:
        raise LaunchError(f"cannot reach {where}: {error}") from error
