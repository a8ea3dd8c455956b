"""The trainers on the pages work as shown, and each framework adapter has its page."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("main-script", "trainer-class", "plain-loader")


def files_of(page: str) -> dict[str, str]:
    """The code blocks of a page with whole files, by name."""
    text = (ROOT / "docs" / f"{page}.md").read_text()
    return dict(re.findall(r'^```python title="(.+?)"\n(.*?)^```', text, re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("page", PAGES)
def test_the_trainer_of_a_page_works_word_for_word(page: str, tmp_path: Path) -> None:
    """In each backend and precision that it declares; test_readme runs the whole adapter, which has more."""
    for name, text in files_of(page).items():
        (tmp_path / name).write_text(text)
    text = (ROOT / "docs" / f"{page}.md").read_text()
    lines = re.findall(r"^conformance ((?:init|smoke) .+)$", text, re.MULTILINE)
    assert lines[-1] == "smoke my_trainer.py"
    for line in lines:
        command = [sys.executable, "-m", "conformance", *line.split()]
        ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert line.startswith("init") or "which is no proof yet" in ran.stdout


def test_the_script_of_a_page_still_runs_by_itself(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(files_of("main-script")["train.py"])
    subprocess.run([sys.executable, "train.py", "--epochs", "1"], cwd=tmp_path, check=True)
    assert (tmp_path / "model.pt").exists()


def test_each_adapter_has_its_page() -> None:
    """`tools/site.py` generates a page for each file linked there."""
    linked = re.findall(
        r"\[You use .+?\]\(\.\./conformance/frameworks/(\w+)\.py\)", (ROOT / "docs/frameworks.md").read_text()
    )
    adapters = {
        file.stem
        for file in (ROOT / "conformance/frameworks").glob("*.py")
        if re.search(r"\btrainer\(", file.read_text())
    }
    assert len(linked) == len(set(linked))
    assert set(linked) == adapters


def test_the_commands_for_an_adapter_are_those_of_its_session() -> None:
    """Each framework's session installs the extra of its name, and runs the adapter by `conformance run`."""
    text = (ROOT / "docs/frameworks.md").read_text()
    [(extra, module)] = re.findall(
        r'^pip install "trainer-conformance\[(.+?)\]"\nconformance run (\S+)$', text, re.MULTILINE
    )
    extras = re.findall(
        r"^([\w-]+) = \[", (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2], re.M
    )
    adapters = re.findall(r"\]\(\.\./conformance/frameworks/(\w+)\.py\)", text)
    for name in adapters:
        assert name.replace("_", "-") in extras
        assert (ROOT / f"{module.replace(extra, name).replace('.', '/')}.py").exists(), name
