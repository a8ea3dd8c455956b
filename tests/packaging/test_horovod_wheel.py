"""The Horovod builder reuses a fitting wheel, refuses in one line, and publishes no failed build."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def builder(root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("horovod_wheel", root / "tools" / "horovod_wheel.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """An environment with an empty cache, and a compiler and make that do nothing."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("g++", "make"):
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    return {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": f"{programs}:/usr/bin:/bin"}


def publish(builder: ModuleType, environ: dict[str, str]) -> Path:
    recipe = builder.RECIPE.read_bytes()
    folder: Path = builder.cache_directory(recipe, builder.torch_version(), environ)
    folder.mkdir(parents=True)
    wheel = folder / "horovod-0.28.1-cp311-cp311-linux_x86_64.whl"
    wheel.write_bytes(b"")
    return wheel


def test_cache_is_keyed_by_torch_and_recipe(builder: ModuleType, environ: dict[str, str]) -> None:
    directories = {
        builder.cache_directory(recipe, torch, environ)
        for recipe in (b"one", b"other")
        for torch in ("2.13.0", "2.13.0+cpu")
    }
    assert len(directories) == 4
    assert all(Path(environ["XDG_CACHE_HOME"]) in directory.parents for directory in directories)


def test_cache_is_in_the_home_without_xdg(builder: ModuleType) -> None:
    directory = builder.cache_directory(b"", "2.13.0", {})
    assert directory.is_relative_to(Path.home() / ".cache" / "trainer-conformance" / "horovod")


def test_cached_wheel_is_not_built_again(
    builder: ModuleType, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = publish(builder, environ)
    monkeypatch.delattr(builder, "build")
    assert builder.wheel(environ) == wheel


@pytest.mark.parametrize("program", ["g++", "make"])
def test_missing_program_gives_one_line_that_names_it(
    builder: ModuleType, environ: dict[str, str], tmp_path: Path, program: str
) -> None:
    (tmp_path / "bin" / program).unlink()
    alone = {**environ, "PATH": str(tmp_path / "bin")}
    with pytest.raises(builder.CannotBuild) as refusal:
        builder.compiler(alone)
    assert f"needs {program}:" in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_missing_torch_gives_one_line(builder: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise builder.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(builder.importlib.metadata, "version", absent)
    with pytest.raises(builder.CannotBuild, match=r"pip install -c constraints\.txt torch"):
        builder.torch_version()


def test_failed_build_shows_its_last_lines_and_publishes_nothing(
    builder: ModuleType, environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nfor i in $(seq 100); do echo line $i; done\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(builder.sys, "executable", str(python))
    directory = tmp_path / "published"
    with pytest.raises(builder.CannotBuild) as failure:
        builder.build(directory, "2.13.0", environ)
    words = str(failure.value)
    assert "line 100" in words
    assert "line 1\n" not in words
    assert [path.name for path in directory.iterdir()] == ["build.log"]
    assert str(directory / "build.log") in words


def test_compiler_wrapper_raises_the_standard_and_keeps_the_rest(builder: ModuleType, tmp_path: Path) -> None:
    wrapper = tmp_path / "c++20"
    wrapper.write_text(builder.COMPILER.format(compiler="printf '%s\\n'"))
    wrapper.chmod(0o755)
    arguments = ["-O2", "-std=gnu++14", "-DNAME=a b", "file.cc"]
    called = subprocess.run([wrapper, *arguments], check=True, capture_output=True, text=True)
    assert called.stdout.splitlines() == ["-O2", "-std=gnu++20", "-DNAME=a b", "file.cc"]


def test_failure_is_reported_without_a_traceback(
    builder: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(environ: object) -> Path:
        raise builder.CannotBuild("no compiler")

    monkeypatch.setattr(builder, "wheel", refuse)
    assert builder.main([]) == 1
    assert capsys.readouterr().err == "no compiler\n"


def test_script_runs_without_the_package(root: Path) -> None:
    command = [sys.executable, "-I", "-S", root / "tools" / "horovod_wheel.py", "--help"]
    shown = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "--install" in shown.stdout
