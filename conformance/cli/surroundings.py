"""What results depend on, for the header of the results file: versions, the machine, the files of the trainers."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path

from conformance.adapter.backends import BACKENDS
from conformance.cli.imported import imported


def machine(targets: Sequence[str], hosts: Sequence[str] = ()) -> dict[str, object]:
    """What a result depends on besides the user's files. ``hosts``: where ranks run, if not only here."""
    found: dict[str, object] = {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
    }
    if hosts:
        found["hosts"] = ", ".join(hosts)
    backends = [backend.package for backend in BACKENDS.values() if backend.package is not None]
    modules = [module for target in targets for module in imported(target).modules]
    for module in dict.fromkeys(["torch", "numpy", *backends, *modules]):
        # A distribution may have the name of a module of Python's, as a backport of it has.
        if module not in sys.stdlib_module_names:
            found |= _versions(module)
    return found


@cache
def _versions(module: str) -> dict[str, str]:
    """Of the distributions that a module is in, which often have its name; nothing if it is not installed."""
    with suppress(PackageNotFoundError):
        return {module: version(module)}
    return {name: version(name) for name in _distributions().get(module, ())}


@cache
def _distributions() -> Mapping[str, Sequence[str]]:
    return packages_distributions()


def sources(targets: Sequence[str]) -> dict[str, dict[str, str]]:
    """By trainer: the SHA-256 of each of the user's files that it imports, its own among them."""
    return {target: {_name(file): _digest(file) for file in imported(target).files} for target in targets}


def _name(file: Path) -> str:
    """Its path, from here if it is below."""
    here = Path.cwd()
    return str(file.relative_to(here) if file.is_relative_to(here) else file)


def _digest(file: Path) -> str:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        return f"unreadable: {error.strerror}"
