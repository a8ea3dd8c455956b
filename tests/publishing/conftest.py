from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from .jobs import ADDRESS, RIGHT, ROOT


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment for which the address of the repository leads to a commit of the checkout as it is."""
    folder = tmp_path_factory.mktemp("repository")
    for name in ("pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "conformance", folder / "conformance", ignore=shutil.ignore_patterns("__pycache__"))
    git = ("git", "-C", str(folder), "-c", "user.name=test", "-c", "user.email=test@example.org")
    for words in (("init", "--quiet"), ("add", "."), ("commit", "--quiet", "--message", "All")):
        subprocess.run([*git, *words], check=True)
    instead = f"url.{folder.as_uri()}.insteadOf"
    return {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": instead, "GIT_CONFIG_VALUE_0": ADDRESS}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A search path with a pip that finds all requirements of this package installed, and can install more."""
    environment = tmp_path_factory.mktemp("job")
    subprocess.run([sys.executable, "-m", "virtualenv", "--quiet", environment], check=True)
    [site] = environment.glob("lib/python*/site-packages")
    (site / "installed.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return f"{environment / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a trainer, and nothing else."""
    (tmp_path / "my_trainer.py").write_text(RIGHT)
    return tmp_path
