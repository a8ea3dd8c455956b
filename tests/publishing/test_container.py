"""The Dockerfile: its steps, run one by one in a folder that stands for the image, judge a trainer."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

from .jobs import ROOT, run

NEEDED = [line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().split() if line.startswith("!")]


def instructions() -> list[tuple[str, str]]:
    """Each instruction of the Dockerfile with its text."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", "")
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


def test_its_steps_judge_a_trainer(project: Path, programs: str, tmp_path: Path) -> None:
    environment, entry = {"PATH": programs}, []
    for name, text in instructions():
        text = text.replace("/opt/", f"{tmp_path}/opt/")
        if name == "COPY":
            source, target = text.split()
            assert source == "."
            for one in NEEDED:
                copy = shutil.copytree if (ROOT / one).is_dir() else shutil.copy
                Path(target).mkdir(parents=True, exist_ok=True)
                copy(ROOT / one, Path(target) / one)
        elif name in ("ENV", "ARG"):
            environment |= dict(word.split("=", 1) for word in shlex.split(text))
        elif name == "RUN":
            ran = run(text, tmp_path, **environment)
            assert ran.returncode == 0, ran.stdout + ran.stderr
        elif name == "ENTRYPOINT":
            entry = re.findall(r'"([^"]+)"', text)
    assert "run" in dict(instructions())["CMD"]
    ran = run(shlex.join([*entry, "run", "my_trainer.py"]), project, **environment)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert (project / "conformance-report.html").exists()
