"""The linter of prose finds phrases in text, but not in code or quotations."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools.prose import ROOT, Hit, hits, of_python, phrases

# In parts, because the linter also reads this file.
ON = "goes" + " on"


def found(tmp_path: Path, name: str, text: str) -> list[Hit]:
    file = tmp_path / name
    file.write_text(text)
    return list(hits(file))


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("a.md", f"# Title\n\nTraining {ON}.\n", 3),
        ("a.md", "Training goes" + "\non.\n", 1),
        ("a.md", f"`x` {ON}: `y`\n", 1),
        ("a.py", f"x = 1\n# Training {ON}.\n", 2),
        ("a.py", "# Training goes" + "\n# on.\n", 1),
        ("a.py", f'def f():\n    """Training {ON}."""\n', 2),
        ("a.py", f'print(f"{{x}} {ON}: {{y}}")\n', 1),
        ("a.py", f'raise ValueError(\n    "first"\n    "\\n{ON}"\n)\n', 3),
        ("a.html.j2", f"{{% if x %}}\n<b>It</b> {ON}\n{{% endif %}}\n", 2),
    ],
)
def test_a_phrase_in_prose(tmp_path: Path, name: str, text: str, line: int) -> None:
    assert found(tmp_path, name, text) == [Hit(line, ON, '"continue"')]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.md", f"```text\n{ON}\n```\n"),
        ("a.md", f"A `{ON}` and [a link](https://example.org/{ON.replace(' ', '%20')}).\n"),
        ("a.md", f"> {ON}\n"),
        ("a.md", f"It {ON} the next card.\n"),
        ("a.py", "goes" + "\non = 1\n"),
        ("a.py", f"# See `{ON}`.\n"),
        ("a.py", 'x = "goes", "on"\n'),
        ("a.py", 'x = f"goes {on}"\n'),
        ("a.html.j2", f"{{{{ {ON} }}}}<i {ON}></i>"),
    ],
)
def test_no_phrase_in_code(tmp_path: Path, name: str, text: str) -> None:
    assert found(tmp_path, name, text) == []


def test_prose_stays_in_its_place() -> None:
    source = 'x = 1  # one\ny = """two\nthree"""\n'
    prose = of_python(source)
    assert len(prose) == len(source)
    assert all(prose.index(word) == source.index(word) for word in ("one", "two", "three"))


def test_no_phrase_matches_its_replacement() -> None:
    assert [phrase for phrase in phrases() if phrase.pattern.search(phrase.instead)] == []


@pytest.mark.parametrize(("word", "code"), [(ON, 1), ("continues", 0)])
def test_the_command(tmp_path: Path, word: str, code: int) -> None:
    file = tmp_path / "a.md"
    file.write_text(f"Training {word}.\n")
    command = [sys.executable, "-m", "tools.prose", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert done.stdout == (f'{file}:1: "{ON}": write "continue"\n' if code else "")
