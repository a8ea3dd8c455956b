"""The versions, machine and files that results depend on, for the header of the results file. It finds the imports of
trainers without importing them."""

from __future__ import annotations

import ast
import hashlib
import importlib
import os
import platform
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from itertools import chain
from pathlib import Path

from conformance.adapter.backends import BACKENDS
from conformance.adapter.loading import TrainerError, file_of, place_of, reference_names
from conformance.adapter.trainer_files import last_name, package_root, parsed


def machine(targets: Sequence[str], hosts: Sequence[str] = ()) -> dict[str, object]:
    """Versions and the machine. ``hosts``: where ranks run, if not only here."""
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
        # A backport of a standard module is a distribution of the same name.
        if module not in sys.stdlib_module_names:
            found |= _versions(module)
    return found


@cache
def _versions(module: str) -> dict[str, str]:
    """The versions of the distributions with this module; empty if it is not installed."""
    with suppress(PackageNotFoundError):
        return {module: version(module)}
    return {name: version(name) for name in _distributions().get(module, ())}


@cache
def _distributions() -> Mapping[str, Sequence[str]]:
    return packages_distributions()


def sources(targets: Sequence[str]) -> dict[str, dict[str, str]]:
    """By trainer: the SHA-256 of its own file and of each user file that it imports."""
    return {target: {_name(file): _digest(file) for file in imported(target).files} for target in targets}


def _name(file: Path) -> str:
    """Its path, relative if it is below the current folder."""
    here = Path.cwd()
    return str(file.relative_to(here) if file.is_relative_to(here) else file)


def _digest(file: Path) -> str:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        return f"unreadable: {error.strerror}"


#: Their versions are in every header, and their checkouts have thousands of files.
_VERSIONED = frozenset({"conformance", "torch", "numpy"})
_STANDARD = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))
_INSTALLED = frozenset({"site-packages", "dist-packages"})
#: Functions whose first argument is the name of a module.
_IMPORTING = frozenset({"__import__", "import_module"})


@dataclass(frozen=True)
class Imported:
    """The imports of a trainer, also those of the user modules among them.

    Attributes:
        files: of the trainer, and of modules that are not installed or editable.
        modules: the top-level names of all modules.
    """

    files: tuple[Path, ...]
    modules: tuple[str, ...]


def imported(target: str) -> Imported:
    """The imports of the trainer ``target``; empty if its file is not found."""
    # The finders cache the contents of folders.
    importlib.invalidate_caches()
    unread, folders = _of_trainer(target)
    files: dict[Path, None] = {}
    modules: dict[str, None] = {}
    while unread:
        file = unread.pop()
        if file not in files:
            files[file] = None
            for level, name in _imports(file):
                top = name.partition(".")[0]
                if level:
                    inside = [str(file.parents[min(level, len(file.parents)) - 1])]
                elif top in _VERSIONED:
                    continue
                else:
                    inside = folders
                    modules[top] = None
                unread += filter(_is_of_user, _files(name, inside))
    return Imported(tuple(files), tuple(modules))


def _of_trainer(target: str) -> tuple[list[Path], list[str]]:
    """The files that run when a trainer is imported, and the folders to search for its imports."""
    try:
        place = place_of(target)
        # An adapter of this package may have the name of its framework.
        ours = file_of(target) if place in reference_names() else None
    except TrainerError:
        return [], []
    if ours is not None:
        return [ours], sys.path
    if not place.endswith(".py") and "/" not in place:
        folders = [str(Path.cwd()), *sys.path]
        return [*_files(place, folders)], folders
    file = Path(place).resolve()
    root = package_root(file) or file.parent
    name = ".".join(file.relative_to(root).with_suffix("").parts)
    # Reading a pipe would wait for its writer.
    own = [file] if file.is_file() else []
    return [*_files(name, [str(root)]), *own], [str(root), *sys.path]


def _imports(file: Path) -> Iterator[tuple[int, str]]:
    """The imports of a file: the number of dots of a relative import, and the dotted name."""
    for node in chain.from_iterable(map(ast.walk, parsed(file))):
        match node:
            case ast.Import():
                yield from ((0, alias.name) for alias in node.names)
            case ast.ImportFrom():
                # The imported name may be a module of a package.
                yield from ((node.level, ".".join(filter(None, (node.module, alias.name)))) for alias in node.names)
            case ast.Call(func=function, args=[ast.Constant(value=str(name)), *_]):
                dotted = name.lstrip(".")
                if last_name(function) in _IMPORTING and all(map(str.isidentifier, dotted.split("."))):
                    yield len(name) - len(dotted), dotted
            case ast.Assign(targets=[ast.Name(id="__all__")], value=ast.List(elts=names) | ast.Tuple(elts=names)):
                # `from package import *` imports the modules in this list.
                if file.name == "__init__.py":
                    strings = (str(name.value) for name in names if isinstance(name, ast.Constant))
                    yield from ((1, name) for name in strings if name.isidentifier())


def _files(name: str, folders: Sequence[str]) -> Iterator[Path]:
    """The files that run when a module is imported: those of its packages, and its own."""
    spec = _spec(name.partition(".")[0], folders)
    for part in [*name.split(".")[1:], None]:
        if spec is None:
            return
        if spec.origin is not None and (file := Path(spec.origin)).is_file():
            yield file
        inside = spec.submodule_search_locations
        spec = None if inside is None or part is None else PathFinder.find_spec(part, [*inside])


def _spec(module: str, folders: Sequence[str]) -> ModuleSpec | None:
    """The top-level module of this name."""
    if not module.isidentifier():
        # Finders of other packages may raise.
        return None
    if (spec := PathFinder.find_spec(module, folders)) is not None:
        return spec
    # Some editable installs have a separate finder.
    for finder in sys.meta_path:
        with suppress(ImportError, AttributeError):
            if (spec := finder.find_spec(module, None)) is not None:
                return spec
    return None


def _is_of_user(file: Path) -> bool:
    """Whether neither Python nor a distribution installed it."""
    return _INSTALLED.isdisjoint(file.parts) and not any(map(file.is_relative_to, _STANDARD))
