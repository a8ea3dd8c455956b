"""Commands on the pages exist, and the README's examples work."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

import nox
import pytest

from conformance.cli import COMMANDS

ROOT = Path(__file__).parents[2]
DOCS = sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))
PAGES = ("README.md", "CONTRIBUTING.md", "tests/README.md", *DOCS)
CASES_OF_THE_EXAMPLE = (
    "single-batched-bf16-momentum",
    "single-acc2-fp16-overflow",
    "single-acc4-fp32-short-window",
    "ddp-w2-fp32-adamw",
    "ddp-w2-fp32-ranks-start-apart",
    "ddp-w2-acc2-fp32-uneven-batch",
    "ddp-w2-acc2-fp16-growing-scale",
    "ddp-w2-acc2-fp16-overflow",
    "ddp-w2-acc3-fp32-short-window",
    "ddp-w3-acc2-fp32-decay",
    "ddp-w3-acc2-bf16-clip-norm",
    "ddp-w4-fp16-overflow",
    "ddp-w4-acc4-fp16-clip-value",
)


def fenced(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


def commands() -> Iterator[list[str]]:
    """Every command in a shell block of the pages, as words, each once."""
    seen = set()
    for page in PAGES:
        for line in "".join(fenced(page, "sh")).splitlines():
            for command in line.split("&&"):
                words = tuple(shlex.split(command, comments=True))
                if words and words not in seen:
                    seen.add(words)
                    yield list(words)


def script(name: str) -> str:
    found = shutil.which(name, path=str(Path(sys.executable).parent))
    assert found is not None, f"{name} is not installed next to {sys.executable}"
    return found


@cache
def help_of(*command: str) -> str:
    return subprocess.run([*command, "--help"], check=True, capture_output=True, text=True).stdout


def options_of(words: list[str]) -> list[str]:
    """The command's own options: after `--` comes another command."""
    words = words[: words.index("--")] if "--" in words else words
    return [word.split("=")[0] for word in words if word.startswith("--")]


def check_conformance(words: list[str], sessions: list[str]) -> None:
    shown = help_of(script("conformance"), words[0])
    assert [option for option in options_of(words) if option not in shown] == []


def check_nox(words: list[str], sessions: list[str]) -> None:
    ours = words[: words.index("--")] if "--" in words else words
    assert ours in ([], ["-l"], ["-t", "thorough"]) or (ours[0] == "-s" and set(ours[1:]) <= set(sessions))


def check_pytest(words: list[str], sessions: list[str]) -> None:
    # The suite has its options only where it is named.
    suite = words[:2] if "--pyargs" in words else []
    shown = help_of(script("pytest"), *suite)
    assert [option for option in options_of(words) if option not in shown] == []
    # A recipe runs code that its diff adds.
    added = re.findall(r"^\+\+\+ b/(\S+)", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    missing = [word for word in words if word.startswith("tests/") and not (ROOT / word).exists()]
    assert [word for word in missing if word not in added] == []


def check_python(words: list[str], sessions: list[str]) -> None:
    if words[0] == "-m":
        return
    shown = help_of(sys.executable, str(ROOT / words[0]))
    assert [option for option in options_of(words) if option not in shown] == []


def check_pip(words: list[str], sessions: list[str]) -> None:
    """In a clone, pinned requirements; elsewhere, this package and its extras."""
    extras = nox.project.load_toml(ROOT / "pyproject.toml")["project"]["optional-dependencies"]
    released = ["trainer-conformance", *(f"trainer-conformance[{extra}]" for extra in extras)]
    assert words[:3] == ["install", "-c", "constraints.txt"] or (
        words[0] == "install" and set(words[1:]) <= {*released}
    )


def check_launcher(program: str, words: list[str], sessions: list[str]) -> None:
    ours = words.index("conformance") if "conformance" in words else len(words)
    shown = help_of(script(program))
    assert [option for option in options_of(words[:ours]) if option not in shown] == []
    if words[ours:]:
        check_conformance(words[ours + 1 :], sessions)


CHECKS = {
    "conformance": check_conformance,
    "horovodrun": partial(check_launcher, "horovodrun"),
    "torchrun": partial(check_launcher, "torchrun"),
    "nox": check_nox,
    "pip": check_pip,
    "pytest": check_pytest,
    "python": check_python,
}
ELSEWHERE = {"git", "cd", ".", "apt-get"}


@pytest.mark.parametrize("words", list(commands()), ids=shlex.join)
def test_command_exists(words: list[str], sessions: list[str], optional_sessions: list[str]) -> None:
    program, *rest = words
    if program in CHECKS:
        CHECKS[program](rest, sessions + optional_sessions)
    else:
        assert program in ELSEWHERE


def test_options_that_the_docs_name_in_a_sentence_exist() -> None:
    """Options of our commands and of our pytest suite."""
    shown = " ".join(help_of(script("conformance"), command) for command in COMMANDS)
    known = {*re.findall(r"--[\w-]+", shown + help_of(script("pytest"), "--pyargs", "conformance.suite"))}
    text = "".join((ROOT / page).read_text() for page in (*DOCS, "README.md"))
    named = {option for span in re.findall(r"(?<!`)`(--[^`\n]+)`", text) for option in re.findall(r"--[\w-]+", span)}
    assert len(named) > 10
    assert named - known == set()


def test_commands_that_the_docs_name_in_a_sentence_exist() -> None:
    for page in (*DOCS, "README.md"):
        for words in map(str.split, re.findall(r"(?<!`)`conformance ([a-z][^`\n]*)`", (ROOT / page).read_text())):
            check_conformance(words, [])


def test_the_two_commands_are_there() -> None:
    lines = "".join(fenced("README.md", "sh")).splitlines()
    assert "pip install -c constraints.txt . && conformance run" in lines
    assert "pip install -c constraints.txt nox && nox" in lines


def test_example_trainer_conforms(tmp_path: Path) -> None:
    """In every precision and layout that it supports, and wherever one of its lines can matter.

    The reference trainers have the same loop, and are judged in all cases.
    """
    [example] = [block for block in fenced("docs/adapter.md", "python") if "@trainer" in block]
    (tmp_path / "my_trainer.py").write_text(example)
    command = [script("conformance"), "run", "my_trainer.py"]
    command += [word for case in CASES_OF_THE_EXAMPLE for word in ("--case", case)]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_lines_for_a_resume_work(tmp_path: Path) -> None:
    """Put into the whole adapter, before, at and after its loop."""
    [example] = [block for block in fenced("docs/adapter.md", "python") if "@trainer" in block]
    [lines] = [block for block in fenced("docs/resume.md", "python") if "resume_from" in block]
    before, after = lines.split("        ...\n")
    for old, new in (
        ("import torch.distributed as dist\n", "import itertools\nimport torch\nimport torch.distributed as dist\n"),
        ("@trainer(", "@trainer(resume=True, "),
        ("    for window in task.windows():\n", before),
        (
            "\n    if task.world_size > 1:\n        dist.destroy",
            f"{after}\n    if task.world_size > 1:\n        dist.destroy",
        ),
    ):
        assert example.count(old) == 1
        example = example.replace(old, new)
    (tmp_path / "my_trainer.py").write_text(example)
    # Without a part of the state that these cases have, the others would pass.
    parts = (f"resumed_at=3,workload={name}" for name in ("adamw", "growing-scale", "two-groups"))
    cases = [word for pattern in ("resumed_at=4", *parts) for word in ("--case", pattern)]
    command = [script("conformance"), "run", "my_trainer.py", *cases]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert re.search(r"All \d\d cases passed", ran.stdout), ran.stdout


def test_links_inside_the_repository_lead_somewhere() -> None:
    broken = [
        (page, target)
        for page in PAGES
        for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", (ROOT / page).read_text())
        if not ((ROOT / page).parent / target).exists()
    ]
    assert broken == []
