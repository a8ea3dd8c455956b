"""c10d's operators, which torch.distributed calls for everything that ranks send each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from conformance.trace.seams.patching import Seam, leaving

_KEY = torch._C.DispatchKey.BackendSelect

_BELOW = torch._C._dispatch_keyset_full().remove(_KEY)

_left: dict[str, Seam] = {}
_libraries: list[torch.library.Library] = []
"""The operators' seams that have been left where they are (`leaving_seams`), and what they would go with."""


@contextmanager
def intercepted(arounds: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Within this, a call of one of these operators of c10d, by name, calls `around(original, keys, *args)`; `keys` are
    the dispatch keys, for the original.

    At the one key that every call passes, also from C++, whatever the tensors are and whether or not inference mode is
    on.
    """
    with ExitStack() as stack:
        seams = _left | stack.enter_context(_seams(arounds.keys() - _left.keys()))
        for name, around in arounds.items():
            stack.enter_context(seams[name].calling(around))
        yield


@contextmanager
def _seams(names: Iterable[str]) -> Iterator[dict[str, Seam]]:
    seams = {name: Seam(_below(name)) for name in names}
    library = torch.library.Library("c10d", "IMPL")
    try:
        for name, seam in seams.items():
            library.impl(name, seam.function, _KEY.name, with_keyset=True)
        yield seams
    finally:
        if leaving.is_on:
            _left.update(seams)
            _libraries.append(library)
        else:
            library._destroy()


def _below(name: str) -> Callable[..., Any]:
    """What an operator does where it is not intercepted."""
    operator = getattr(torch.ops.c10d, name).default

    def redispatch(keys: torch._C.DispatchKeySet, *args: Any) -> Any:
        return operator.redispatch(keys & _BELOW, *args)

    return redispatch
