"""What results depend on, for the header of the results file: versions, the machine, the source of the trainers."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path

from conformance.adapter.backends import BACKENDS
from conformance.adapter.loading import TrainerError, place_of, reference_names, stated


def machine(hosts: Sequence[str] = ()) -> dict[str, object]:
    """What a result depends on besides the trainer. ``hosts``: where ranks run, if not only here."""
    found: dict[str, object] = {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
    }
    if hosts:
        found["hosts"] = ", ".join(hosts)
    declarations = [stated(name) for name in reference_names()]
    required = [module for declaration in declarations if declaration for module in declaration.requires]
    backends = [backend.package for backend in BACKENDS.values() if backend.package is not None]
    for module in dict.fromkeys(["torch", "numpy", *backends, *required]):
        found |= _versions(module)
    return found


def _versions(module: str) -> dict[str, object]:
    """Of the distributions that a module is in, which often have its name; nothing if it is not installed."""
    with suppress(PackageNotFoundError):
        return {module: version(module)}
    return {name: version(name) for name in packages_distributions().get(module, ())}


def sources(targets: Sequence[str]) -> dict[str, object]:
    """The SHA-256 of each trainer's own file, as far as it can be found without importing anything."""
    found: dict[str, object] = {}
    for target in targets:
        with suppress(OSError, TrainerError):
            file = _file(place_of(target))
            if file is not None and file.is_file():
                found[target] = "sha256 " + hashlib.sha256(file.read_bytes()).hexdigest()
    return found


def _file(place: str) -> Path | None:
    """The file of a module, or the one that is named."""
    if place.endswith(".py") or "/" in place:
        return Path(place)
    path: list[str] | None = [os.getcwd(), *sys.path]
    spec = None
    for name in place.split("."):
        spec = PathFinder.find_spec(name, path) if path is not None else None
        if spec is None:
            return None
        path = None if spec.submodule_search_locations is None else [*spec.submodule_search_locations]
    return None if spec is None or spec.origin is None else Path(spec.origin)
