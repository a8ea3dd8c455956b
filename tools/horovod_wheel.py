"""Builds Horovod's wheel for the torch of this environment, once, and reuses it from a cache.

    python tools/horovod_wheel.py             prints the path of the wheel
    python tools/horovod_wheel.py --install   also installs it

Horovod 0.28.1 is the last release and has no wheels. Its sdist compiles against a current torch under four
conditions: torch is available during the build (no build isolation), CMake is older than 4 (which dropped the
policies that it requires), the C++ standard is 20 (its CMakeLists has 14, torch's headers need more), and all
frameworks and transports are switched on or off explicitly.

The wheel fits one torch build, one Python and one recipe (this file); the cache is keyed by these three. It is
outside the tree: in $XDG_CACHE_HOME/trainer-conformance/horovod, or under ~/.cache.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

HOROVOD = "horovod==0.28.1 --hash=sha256:92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
BUILD_REQUIREMENTS = (
    "cmake<4",
    "setuptools",
    "wheel",
    "cloudpickle",
    "numpy",
    "packaging",
    "psutil",
    "pyyaml",
)
SETTINGS = {
    "HOROVOD_WITH_PYTORCH": "1",
    "HOROVOD_WITHOUT_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITHOUT_MPI": "1",
    "CMAKE_POLICY_VERSION_MINIMUM": "3.5",
    # With a CUDA build of torch: nvcc must read headers by the standard of the compiler that it calls.
    "NVCC_APPEND_FLAGS": "-std=c++20",
}
# Flags in a CMakeLists override CXXFLAGS, so the standard is changed where the compiler is called.
COMPILER = """\
#!/bin/sh
for argument; do
    shift
    case "$argument" in -std=*) argument=-std=gnu++20 ;; esac
    set -- "$@" "$argument"
done
exec {compiler} "$@"
"""
RECIPE = Path(__file__)
CONSTRAINTS = RECIPE.parent.parent / "constraints.txt"
LOG_TAIL = 30


class CannotBuild(Exception):
    """A failed build: what is missing or what failed, and what to do."""


def cache_directory(recipe: bytes, torch_version: str, environ: Mapping[str, str]) -> Path:
    """The folder of the wheel for this recipe, torch and Python."""
    home = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    python = f"cp{sys.version_info.major}{sys.version_info.minor}-{sysconfig.get_platform()}"
    key = f"torch-{torch_version}-{python}-{hashlib.sha256(recipe).hexdigest()[:12]}"
    return home / "trainer-conformance" / "horovod" / key


def cached_wheel(directory: Path) -> Path | None:
    return next(iter(sorted(directory.glob("*.whl"))), None)


def torch_version() -> str:
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        raise CannotBuild(
            "Horovod compiles against torch, which is not installed: pip install -c constraints.txt torch"
        ) from None


def compiler(environ: Mapping[str, str]) -> str:
    """The C++ compiler to call. Raises CannotBuild if it or make is not on the PATH."""
    chosen = environ.get("CXX") or "g++"
    missing = [
        program for program in (chosen.split()[0], "make") if shutil.which(program, path=environ.get("PATH")) is None
    ]
    if missing:
        raise CannotBuild(
            f"Horovod is built from source and needs {' and '.join(missing)}: "
            "install a C++ compiler and make (on Debian: apt-get install g++ make)"
        )
    return chosen


def run(command: Sequence[str | Path], log: Path, environ: Mapping[str, str]) -> None:
    """Runs a command, with its output appended to the log. Raises CannotBuild with the log's end if it fails."""
    with log.open("a") as output:
        output.write(f"$ {' '.join(map(str, command))}\n")
        output.flush()
        done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, env=environ, check=False)
    if done.returncode != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-LOG_TAIL:])
        raise CannotBuild(f"{tail}\n\nBuilding Horovod failed; full log: {log}")


def build(directory: Path, torch: str, environ: Mapping[str, str]) -> Path:
    """Builds the wheel, checks that it imports, and then publishes it in the directory."""
    chosen = compiler(environ)
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / "build.log"
    log.write_text("")
    print(
        f"Building Horovod for torch {torch}, once; this takes about three minutes. Log: {log}",
        file=sys.stderr,
        flush=True,
    )
    # In the cache's own folder: a rename is atomic only within one file system.
    with tempfile.TemporaryDirectory(prefix=".building-", dir=directory) as scratch_name:
        scratch = Path(scratch_name)
        wrapper = scratch / "c++20"
        wrapper.write_text(COMPILER.format(compiler=chosen))
        wrapper.chmod(0o755)
        requirement = scratch / "horovod.txt"
        requirement.write_text(HOROVOD + "\n")
        tools, wheels, trial = scratch / "tools", scratch / "wheels", scratch / "trial"

        def pip(*arguments: str | Path, environ: Mapping[str, str] = environ) -> None:
            run([sys.executable, "-m", "pip", *arguments], log, environ)

        pip("install", "--target", tools, "--constraint", CONSTRAINTS, *BUILD_REQUIREMENTS)
        pip(
            "wheel",
            # pip's own cache ignores torch's version: it would return a wheel made for another.
            "--no-cache-dir",
            "--no-build-isolation",
            "--no-deps",
            "--wheel-dir",
            wheels,
            "--requirement",
            requirement,
            environ={
                **environ,
                **SETTINGS,
                "CXX": str(wrapper),
                "MAKEFLAGS": environ.get("MAKEFLAGS") or f"-j{len(os.sched_getaffinity(0))}",
                "PATH": os.pathsep.join((str(tools / "bin"), environ.get("PATH", os.defpath))),
                "PYTHONPATH": str(tools),
            },
        )
        [built] = wheels.glob("*.whl")
        pip("install", "--no-deps", "--target", trial, built)
        run(
            [sys.executable, "-c", "import horovod.torch"],
            log,
            {**environ, "PYTHONPATH": os.pathsep.join((str(trial), str(tools)))},
        )
        published = directory / built.name
        built.replace(published)
    return published


def wheel(environ: Mapping[str, str]) -> Path:
    """The wheel for this environment, from the cache or newly built."""
    torch = torch_version()
    directory = cache_directory(RECIPE.read_bytes(), torch, environ)
    return cached_wheel(directory) or build(directory, torch, environ)


def install(path: Path) -> None:
    """Installs the wheel into this environment, replacing any other build of the same version."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--force-reinstall", str(path)]
    if subprocess.run(pip, check=False).returncode != 0:
        raise CannotBuild(f"pip could not install {path}")
    trial = [sys.executable, "-c", "import horovod.torch"]
    imported = subprocess.run(trial, stderr=subprocess.PIPE, text=True, check=False)
    if imported.returncode != 0:
        raise CannotBuild(
            f"Horovod is installed but does not import: {imported.stderr.strip().splitlines()[-1]}\n"
            "Install its runtime requirements: pip install -c constraints.txt '.[horovod]'"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Build Horovod's wheel for this environment's torch.")
    parser.add_argument("--install", action="store_true", help="also install the wheel into this environment")
    options = parser.parse_args(arguments)
    try:
        path = wheel(os.environ)
        if options.install:
            install(path)
    except CannotBuild as problem:
        print(problem, file=sys.stderr)
        return 1
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
