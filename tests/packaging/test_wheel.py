"""The wheel contains exactly the package, and the tests run against it."""

from __future__ import annotations

import configparser
import email
import importlib.metadata
import json
import re
import zipfile
from pathlib import Path

import conformance


def package_files(root: Path) -> set[str]:
    return {
        str(path.relative_to(root))
        for path in (root / "conformance").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_wheel_holds_the_package_and_its_metadata_only(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"conformance"}


def test_wheel_holds_every_file_of_the_package(wheel: zipfile.ZipFile, root: Path) -> None:
    shipped = {name for name in wheel.namelist() if name.startswith("conformance/")}
    assert shipped == package_files(root)


def test_wheel_is_typed_and_licensed(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    assert "conformance/py.typed" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_links_of_the_page_on_pypi_are_absolute(wheel: zipfile.ZipFile, root: Path) -> None:
    """To the repository, like the README's."""
    [name] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    metadata = email.message_from_bytes(wheel.read(name))
    links = re.findall(r"\]\(([^)]+)\)", metadata.get_payload())
    [repository] = [url.split(", ")[1] for url in metadata.get_all("Project-URL") if url.startswith("Repository")]
    inside = [link.removeprefix(f"{repository}/blob/main/") for link in links if link.startswith(repository)]
    assert len(inside) > 20
    assert [path for path in inside if not (root / path.partition("#")[0]).exists()] == []
    assert [link for link in links if not link.startswith("https://")] == []
    assert f"repo_url: {repository}\n" in (root / "mkdocs.yml").read_text()


def test_wheel_declares_the_command_and_the_plugin(wheel: zipfile.ZipFile) -> None:
    [name] = [name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt")]
    points = configparser.ConfigParser()
    points.read_string(wheel.read(name).decode())
    assert dict(points["console_scripts"]) == {"conformance": "conformance.cli:main"}
    assert dict(points["pytest11"]) == {"conformance": "conformance.plugin"}


def test_imported_package_is_the_installed_one(root: Path) -> None:
    """A checkout on the import path would be tested instead of the wheel, unnoticed."""
    imported = Path(conformance.__file__)
    distribution = importlib.metadata.distribution("trainer-conformance")
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    if origin.get("dir_info", {}).get("editable"):
        assert imported == root / "conformance" / "__init__.py"
    else:
        assert imported == Path(distribution.locate_file("conformance/__init__.py"))
        assert root not in imported.parents or ".nox" in imported.parts


def test_imported_package_is_what_the_wheel_holds(wheel: zipfile.ZipFile) -> None:
    site = Path(conformance.__file__).parents[1]
    differing = [
        name
        for name in wheel.namelist()
        if name.startswith("conformance/") and (site / name).read_bytes() != wheel.read(name)
    ]
    assert differing == []
