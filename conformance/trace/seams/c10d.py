"""The operators of c10d, which torch.distributed calls for everything that ranks send each other, and its functional
ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from conformance.trace.seams.patching import Seam, leaving

_KEY = torch._C.DispatchKey.BackendSelect

_BELOW = torch._C._dispatch_keyset_full().remove(_KEY)

_left: dict[tuple[str, str], Seam] = {}
_libraries: list[torch.library.Library] = []
"""The operators' seams that have been left where they are (`leaving_seams`), and what they would go with."""


@contextmanager
def intercepted(arounds: Mapping[str, Callable[..., Any]], namespace: str = "c10d") -> Iterator[None]:
    """Within this, a call of one of these operators, by name, calls `around(original, keys, *args)`; `keys` are the
    dispatch keys, for the original.

    At the one key that every call passes, also from C++, whatever the tensors are and whether or not inference mode is
    on.
    """
    with ExitStack() as stack:
        known = {name: seam for (where, name), seam in _left.items() if where == namespace}
        seams = known | stack.enter_context(_seams(namespace, arounds.keys() - known.keys()))
        for name, around in arounds.items():
            stack.enter_context(seams[name].calling(around))
        yield


@contextmanager
def _seams(namespace: str, names: Iterable[str]) -> Iterator[dict[str, Seam]]:
    seams = {name: Seam(_below(namespace, name)) for name in names}
    library = torch.library.Library(namespace, "IMPL")
    try:
        for name, seam in seams.items():
            library.impl(name, seam.function, _KEY.name, with_keyset=True)
        yield seams
    finally:
        if leaving.is_on:
            _left.update({(namespace, name): seam for name, seam in seams.items()})
            _libraries.append(library)
        else:
            library._destroy()


def _below(namespace: str, name: str) -> Callable[..., Any]:
    """What an operator does where it is not intercepted."""
    operator = getattr(getattr(torch.ops, namespace), name).default

    def redispatch(keys: torch._C.DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        return operator.redispatch(keys & _BELOW, *args, **kwargs)

    return redispatch
