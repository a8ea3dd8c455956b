"""Loads a trainer: from a target such as `my_trainer.py:train` to its function and declaration. Imports no torch."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import shlex
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

from conformance.adapter import trainer_files
from conformance.adapter.declaration import Declaration, declared, did_you_mean
from conformance.adapter.trainer_files import MissingRequirement, TrainerError, declaration_in, trainers_in

__all__ = [
    "ALL", "Import", "MissingRequirement", "Train", "TrainerError", "every_trainer", "imported", "load",
    "missing_requirements", "place_of", "reference_names", "stated",
]  # fmt: skip

Train = Callable[[Any], None]
Import = Callable[[str], ModuleType]

#: Replaces a target: all trainers of the named files.
ALL = "all"
_PACKAGE = __name__.partition(".")[0]
_FOLDERS = ("trainers", "frameworks")


def imported(place: str) -> ModuleType:
    """Imports the file or module of a target, as `place_of` names it. Raises TrainerError, like `load`."""
    if place.endswith(".py") or "/" in place or "\\" in place:
        return trainer_files.from_path(place)
    if (bundled := _bundled().get(place)) is not None:
        return trainer_files.named(f"{_PACKAGE}.{bundled.parent.name}.{place}", place, bundled)
    return trainer_files.from_name(place, suggestions=reference_names())


def load(target: str, imported: Import = imported) -> tuple[Train, Declaration]:
    """Imports the trainer that `target` names. The declaration's `name` is filled in.

    Targets: `path.py`, `path.py:function`, `package.module`, `package.module:function`, or the bare name of a trainer
    in this package (`ddp`, `accelerate`). Raises TrainerError; its subclass MissingRequirement if a module is missing
    that the trainer lists under `requires`. `imported` imports the module.
    """
    place, name = _split(target)
    if name is None and trainer_files.is_script(Path(place)):
        raise _no_trainer(place)
    module = imported(place)
    function, is_only_one = _choose(module, place, name)
    declaration = declared(function)
    if declaration is None:
        raise TrainerError(f"{place}: {name} is not decorated with @trainer(...): add it from `conformance`")
    if declaration.name is None:
        stem = place.rpartition(".")[2] if not place.endswith(".py") else Path(place).stem
        label = stem if is_only_one else getattr(function, "__name__", str(name))
        declaration = dataclasses.replace(declaration, name=label)
    return function, declaration


def reference_names() -> tuple[str, ...]:
    """The bare names that `load` accepts: reference trainers and framework adapters."""
    return tuple(_bundled())


def stated(target: str) -> Declaration | None:
    """The declaration of a trainer in this package, read from its source; None for others, which need an import."""
    bundled = _bundled().get(target)
    return None if bundled is None else declaration_in(bundled)


def file_of(target: str) -> Path | None:
    """The file that a target names, which may not exist; None for a module that is not found.

    Finding a module in a package imports the package. Raises TrainerError.
    """
    place = place_of(target)
    if place.endswith(".py") or "/" in place or "\\" in place:
        return Path(place)
    if (bundled := _bundled().get(place)) is not None:
        return bundled
    trainer_files.put_first(Path.cwd())
    try:
        spec = importlib.util.find_spec(place)
    except (ImportError, ValueError):
        return None
    return None if spec is None or spec.origin is None else Path(spec.origin)


@cache
def _bundled() -> dict[str, Path]:
    """The files of this package with a `@trainer`, by name and in its order."""
    files = [file for folder in _FOLDERS for file in (Path(__file__).parents[1] / folder).glob("*.py")]
    return {file.stem: file for file in sorted(files, key=lambda file: file.stem) if _holds_trainer(file)}


def _holds_trainer(file: Path) -> bool:
    return any(line.startswith("@trainer") for line in file.read_text().splitlines())


def every_trainer(targets: Sequence[str]) -> list[str]:
    """The targets; if `all` is among them, each file or module with several trainers is replaced by these.

    Raises TrainerError if `all` is the only target.
    """
    named = [target for target in targets if target != ALL]
    if len(named) == len(targets):
        return named
    if not named:
        raise TrainerError(f"{ALL} needs a file: name it too, as in: my_trainers.py --trainer {ALL}")
    return [one for target in named for one in _each(target)]


def _each(target: str) -> list[str]:
    place, name = _split(target)
    file = file_of(place) if name is None else None
    names = [] if file is None else trainers_in(file)
    return [f"{place}:{one}" for one in names] if len(names) > 1 else [target]


def missing_requirements(declaration: Declaration) -> tuple[str, ...]:
    """The modules in `requires` that are not found on this machine."""
    return tuple(name for name in declaration.requires if not _is_installed(name))


def _is_installed(name: str) -> bool:
    # A loaded module may have no spec: some frameworks put modules that they made into `sys.modules`.
    if name in sys.modules:
        return sys.modules[name] is not None
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # from the parent package of a dotted name
        return False


def place_of(target: str) -> str:
    """The file or module that a target names, without the function. Raises TrainerError."""
    return _split(target)[0]


def function_of(target: str) -> str | None:
    """The function that a target names. Raises TrainerError."""
    return _split(target)[1]


def _split(target: str) -> tuple[str, str | None]:
    place, colon, name = target.rpartition(":")
    # A file name may contain a colon, and so does a drive.
    if not colon or name.endswith(".py") or "/" in name or "\\" in name:
        return target, None
    if not place or not name:
        raise TrainerError(f"{target!r}: write path.py:function or package.module:function")
    return place, name


def _module_of(value: object) -> object:
    """The module that defines a trainer; a partial function has none itself."""
    return getattr(value.func if isinstance(value, partial) else value, "__module__", None)


def _choose(module: ModuleType, place: str, name: str | None) -> tuple[Train, bool]:
    """The requested function, or the only trainer; and whether it is the only one."""
    marked: dict[str, Train] = {key: value for key, value in vars(module).items() if declared(value) is not None}
    candidates = {key: value for key, value in marked.items() if _module_of(value) == module.__name__}
    # Python imports any folder as a package.
    if not candidates and not (name and hasattr(module, name)) and Path(place).is_dir():
        raise trainer_files.a_folder(place)
    if name is not None:
        found = getattr(module, name, None)
        if found is None:
            functions = [key for key, value in vars(module).items() if inspect.isfunction(value)]
            hint = did_you_mean(name, list(candidates) or functions) or (
                f"; it has {', '.join(candidates)}" if candidates else ""
            )
            raise TrainerError(f"{place}: no function {name!r} in it{hint}")
        if not callable(found):
            raise TrainerError(f"{place}: {name} is not a function")
        return found, list(candidates) == [name]
    if not candidates and marked:
        # Imported, perhaps only for use.
        choices = " or ".join(f"{place}:{key}" for key in marked)
        raise TrainerError(
            f"{place}: no @trainer function is defined in it; to run one that it imports, name {choices}"
        )
    if not candidates:
        raise _no_trainer(place)
    if len(candidates) > 1:
        choices = ", ".join(f"{place}:{key}" for key in candidates)
        several = f"{place}: {len(candidates)} @trainer functions in it"
        # Trainers made without `@trainer` are unknown until the file is imported.
        or_all = f", or add --trainer {ALL}" if len(_each(place)) > 1 else ""
        raise TrainerError(f"{several}, name one of {choices}{or_all}")
    return next(iter(candidates.values())), True


def _no_trainer(place: str) -> TrainerError:
    what, file = f"{place}: no @trainer function in it", shlex.quote(place)
    if not place.endswith(".py"):
        return TrainerError(f"{what}: decorate your training function with @trainer(...) from `conformance`")
    return TrainerError(
        f"{what}; to watch a script: conformance watch -- python {file}; to make an adapter: conformance init {file}"
    )
