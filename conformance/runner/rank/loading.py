"""Importing a trainer together with what its backend needs beyond torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

from conformance.adapter.declaration import Declaration
from conformance.adapter.loading import (
    MissingRequirement,
    Train,
    TrainerError,
    load,
    missing_requirements,
)
from conformance.runner.outcome import Unavailable

# Horovod's last release does not build against a current torch from a plain `pip install`.
_HOROVOD_INSTALL = "python tools/horovod_wheel.py --install"
# What PyPI calls apex is something else, and NVIDIA's has no `amp` after this commit.
_APEX_INSTALL = (
    "pip install --no-build-isolation git+https://github.com/NVIDIA/apex@e13873debc4699d39c6861074b9a3b2a02327f92"
)
# Ray Train needs more than a plain `ray` brings.
_RAY_INSTALL = 'pip install "ray[train]"'


def load_for(target: str, backend: str) -> tuple[Train, Declaration]:
    """The trainer, ready to run on ``backend``. Raises TrainerError, Unavailable."""
    broken = _import_horovod() if backend == "horovod" else None
    try:
        train, declaration = load(target)
    except TrainerError as error:
        found = error.declaration if isinstance(error, MissingRequirement) else None
        if broken:
            raise Unavailable(broken, _HOROVOD_INSTALL, found) from error
        if isinstance(error, MissingRequirement):
            raise _missing([error.module], error.declaration) from error
        raise
    if broken:
        raise Unavailable(broken, _HOROVOD_INSTALL, declaration)
    if missing := missing_requirements(declaration):
        raise _missing(missing, declaration)
    return train, declaration


def versions(packages: Iterable[str]) -> dict[str, str]:
    """The installed version of each package that has one."""
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _import_horovod() -> str | None:
    """Why ranks could not use Horovod, if so."""
    try:
        import_module("horovod.torch")
    except ImportError as error:
        return f"Horovod cannot be imported: {' '.join(str(error).split())}"
    return None


def why_no_gpu(backend: str) -> str | None:
    """Why ranks could not use a GPU that is there, if so."""
    if backend != "horovod" or import_module("horovod.torch").cuda_built():
        return None
    return "Horovod was built without CUDA; build it again, next to a torch that has CUDA"


def _missing(modules: Sequence[str], declaration: Declaration) -> Unavailable:
    missing = {module.partition(".")[0] for module in modules}
    names = ", ".join(modules)
    if "horovod" in missing:
        return Unavailable(f"{names} is not installed", _HOROVOD_INSTALL, declaration)
    if "ray" in missing:
        return Unavailable(f"{names} is not installed", _RAY_INSTALL, declaration)
    if "apex" in missing:
        return Unavailable("an apex that has amp is not installed, and amp needs a GPU", _APEX_INSTALL, declaration)
    command = f"pip install {' '.join(declaration.requires)}"
    return Unavailable(f"{names} is not installed", command, declaration)
