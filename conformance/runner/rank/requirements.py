"""Imports a trainer and its backend's requirements."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import NamedTuple

from conformance.adapter.backends import BACKENDS, Backend
from conformance.adapter.declaration import Declaration
from conformance.adapter.loading import (
    Import,
    MissingRequirement,
    Train,
    TrainerError,
    imported,
    load,
    missing_requirements,
)
from conformance.runner.outcome import Unavailable
from conformance.runner.system import patches


class _Special(NamedTuple):
    """A package that a plain `pip install NAME` would not install: the command to install it, and a reason to show."""

    command: str
    reason: str | None = None


_SPECIAL = {
    # Its last release does not build with a current torch.
    "horovod": _Special("python tools/horovod_wheel.py --install"),
    # PyPI's ignite is another package.
    "ignite": _Special("pip install pytorch-ignite"),
    # Ray Train needs more than Ray itself.
    "ray": _Special('pip install "ray[train]"'),
    # PyPI's apex is another package, and NVIDIA's has no `amp` after this commit.
    "apex": _Special(
        "pip install --no-build-isolation git+https://github.com/NVIDIA/apex@e13873debc4699d39c6861074b9a3b2a02327f92",
        "no apex with amp is installed, and amp needs a GPU",
    ),
}


def remembered(place: str) -> Import:
    """Import ``place`` now. The result is a function that returns the module, or raises the import's error each time.

    Functions that the import replaces and the harness needs are put back, see `patches`.
    """
    try:
        with patches.undone():
            module = imported(place)
    except TrainerError as error:
        wrong = error

        def fail(place: str) -> ModuleType:
            raise wrong

        return fail
    return lambda place: module


def load_for(target: str, backend: str, imported: Import = imported) -> tuple[Train, Declaration]:
    """The trainer, ready to run on ``backend``. Raises TrainerError, Unavailable."""
    unavailable = _why_unavailable(BACKENDS[backend])
    missing: Sequence[str]
    try:
        train, declaration = load(target, imported)
        missing = missing_requirements(declaration)
    except MissingRequirement as error:
        declaration, missing = error.declaration, [error.module]
    except TrainerError as error:
        if unavailable:
            raise Unavailable(*unavailable, None) from error
        raise
    if unavailable:
        raise Unavailable(*unavailable, declaration)
    if missing:
        raise _missing(missing, declaration)
    return train, declaration


def versions(packages: Iterable[str]) -> dict[str, str]:
    """The versions of the installed ones of these packages."""
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _why_unavailable(backend: Backend) -> tuple[str, str] | None:
    """Why ranks cannot use the backend's package, and the command that installs it; None if they can."""
    if backend.package is None or backend.module is None:
        return None
    try:
        import_module(backend.module)
    except ImportError as error:
        reason = f"{backend.package.capitalize()} cannot be imported: {' '.join(str(error).split())}"
        special = _SPECIAL.get(backend.package)
        return reason, f"pip install {backend.package}" if special is None else special.command
    return None


def why_no_gpu(backend: str) -> str | None:
    """Why ranks could not even use an existing GPU; None if they could."""
    if BACKENDS[backend].rendezvous != "horovod" or import_module("horovod.torch").cuda_built():
        return None
    return "Horovod was built without CUDA; rebuild it with a torch that has CUDA"


def refused(backend: str) -> dict[str, str]:
    """The precisions that the backend refuses on this machine, each with the reason."""
    if BACKENDS[backend].package != "deepspeed":
        return {}
    if import_module("deepspeed.accelerator").get_accelerator().is_fp16_supported():
        return {}
    return {"fp16": "DeepSpeed refuses fp16 here, because this CPU has no instructions for it (AVX512-FP16)"}


def _missing(modules: Sequence[str], declaration: Declaration) -> Unavailable:
    packages = {module.partition(".")[0] for module in modules}
    plain = _Special(f"pip install {' '.join(declaration.requires)}")
    special = next((special for package, special in _SPECIAL.items() if package in packages), plain)
    return Unavailable(special.reason or f"{', '.join(modules)} is not installed", special.command, declaration)
