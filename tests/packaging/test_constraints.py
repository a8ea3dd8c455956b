"""Every install uses constraints.txt, which pins all requirements."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nox
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version


@pytest.fixture(scope="module")
def pins(root: Path) -> dict[str, Version]:
    return pinned_in(root / "constraints.txt")


def pinned_in(file: Path) -> dict[str, Version]:
    """Version by name. Fails on a line that does not pin exactly."""
    found = {}
    for line in file.read_text().splitlines():
        if line and not line.startswith("#"):
            name, version = re.fullmatch(r"([\w.-]+)==([\w.]+)", line).groups()
            found[canonicalize_name(name)] = Version(version)
    return found


def requirements(root: Path) -> Iterator[Requirement]:
    project: dict[str, Any] = nox.project.load_toml(root / "pyproject.toml")
    extras = project["project"]["optional-dependencies"]
    for line in project["build-system"]["requires"] + project["project"]["dependencies"]:
        yield Requirement(line)
    for lines in extras.values():
        yield from (one for one in map(Requirement, lines) if one.name != project["project"]["name"])


def test_everything_that_the_project_names_is_pinned_within_its_range(root: Path, pins: dict[str, Version]) -> None:
    unmet = [str(one) for one in requirements(root) if pins.get(canonicalize_name(one.name)) not in one.specifier]
    assert unmet == []


def test_the_oldest_that_the_project_allows_is_pinned_too(root: Path) -> None:
    oldest = pinned_in(root / "constraints-oldest.txt")
    project: dict[str, Any] = nox.project.load_toml(root / "pyproject.toml")["project"]
    bounds = {canonicalize_name(one.name): str(one.specifier) for one in map(Requirement, project["dependencies"])}
    # Trailing zeros of versions are ignored.
    assert {name: Version(bound.removeprefix(">=")) for name, bound in bounds.items()} == {
        name: oldest[name] for name in bounds
    }


def test_no_install_goes_past_the_constraints(root: Path) -> None:
    places = [root / "noxfile.py", root / ".ci" / "run", root / ".github" / "workflows" / "ci.yml"]
    places += [root / name for name in ("README.md", "CONTRIBUTING.md", "tests/README.md", "docs/paths.md")]
    loose = [
        (place.name, line.strip())
        for place in places
        for line in place.read_text().splitlines()
        if re.search(r"pip\"? install|session\.install\(|\.run_install\(", line)
        and not re.search(
            r"constraints\.txt|CONSTRAINTS|all_but_torch|--no-deps|\*command|horovod_wheel|\"uninstall\"", line
        )
    ]
    assert loose == []
