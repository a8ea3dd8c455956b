"""What results depend on, for the header of the results file: versions, the machine, the source of the trainers."""

from __future__ import annotations

import ast
import hashlib
import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path

from conformance.adapter.backends import BACKENDS
from conformance.adapter.loading import TrainerError, file_of, place_of, reference_names


def machine(targets: Sequence[str], hosts: Sequence[str] = ()) -> dict[str, object]:
    """What a result depends on besides the trainers' own source. ``hosts``: where ranks run, if not only here."""
    found: dict[str, object] = {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
    }
    if hosts:
        found["hosts"] = ", ".join(hosts)
    backends = [backend.package for backend in BACKENDS.values() if backend.package is not None]
    for module in dict.fromkeys(["torch", "numpy", *backends, *_imported(targets)]):
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


def _imported(targets: Sequence[str]) -> Iterator[str]:
    """The modules of distributions that trainers import, also in modules of their own, without importing anything."""
    files = [file for target in targets if (file := _file_of(target)) is not None]
    seen = {*sys.stdlib_module_names, "conformance"}
    while files:
        with suppress(OSError, SyntaxError, ValueError):
            for name in _imports(ast.parse(files.pop().read_bytes())):
                top = name.partition(".")[0]
                if seen.isdisjoint({top, name}):
                    if _versions(top):
                        seen.add(top)
                        yield top
                    elif (file := _file(name)) is not None:
                        seen.add(name)
                        files.append(file)


def _imports(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            yield node.module
            # What is imported may be a module of a package.
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def sources(targets: Sequence[str]) -> dict[str, object]:
    """The SHA-256 of each trainer's own file, as far as it can be found without importing anything."""
    found: dict[str, object] = {}
    for target in targets:
        with suppress(OSError):
            file = _file_of(target)
            if file is not None:
                found[target] = "sha256 " + hashlib.sha256(file.read_bytes()).hexdigest()
    return found


def _file_of(target: str) -> Path | None:
    """The file of a trainer. One of this package may have the name of the framework that it adapts."""
    with suppress(TrainerError):
        place = place_of(target)
        file = file_of(target) if place in reference_names() else _file(place)
        # Reading a pipe would wait for whoever writes into it.
        return file if file is not None and file.is_file() else None
    return None


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
