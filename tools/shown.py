"""Runs the commands of docs/tutorial.md, and writes what they print into the page and into docs/pictures/watch.svg.

python -m tools.shown

In order: a block with a file's name as its title is written to that file, a diff is applied, and the commands of a
block `sh` are run if a block `text` follows, which is what they print.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "tutorial.md"
PICTURE = ROOT / "docs" / "pictures" / "watch.svg"
WIDTH = 80
_BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
_FONTS = re.compile(r"@font-face \{\{.*?\}\}\s*", re.DOTALL)


def renewed(page: str) -> tuple[str, str]:
    """The page with what its commands print now, and the picture of the first command that finds something wrong."""
    parts, end, picture = [], 0, ""
    with TemporaryDirectory() as name:
        folder, printed = Path(name), ""
        for block in _BLOCK.finditer(page):
            language, title, text = block.groups()
            if language == "text":
                parts += [page[end : block.start(3)], printed]
                end = block.end(3)
            elif language == "diff":
                subprocess.run(["patch", "--quiet", title], input=text, cwd=folder, text=True, check=True)
            elif title:
                (folder / title).parent.mkdir(exist_ok=True)
                (folder / title).write_text(text)
            elif language == "sh" and page[block.end() :].lstrip().startswith("```text"):
                printed = output(text, folder)
                if not picture and "conformance watch" in text:
                    picture = drawn(text.strip(), output(text, folder, CLICOLOR_FORCE="1"))
    return "".join([*parts, page[end:]]), picture


def output(commands: str, folder: Path, **more: str) -> str:
    """What the commands print, and an exit code that is not 0."""
    own = {"COLUMNS": str(WIDTH), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONWARNINGS": "ignore"}
    own["PET_STANDALONE"] = "1"  # torchrun's port is free
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(
        ["bash", "-c", commands],
        cwd=folder,
        env=os.environ | own | {"PATH": path} | more,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return ran.stdout


def drawn(command: str, ansi: str) -> str:
    """A picture of a terminal."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(Text(f"$ {command}\n", "bold"))
    console.print(Text.from_ansi(ansi))
    format = _FONTS.sub("", CONSOLE_SVG_FORMAT)
    return console.export_svg(title="", code_format=format, unique_id="watch")


if __name__ == "__main__":
    text, picture = renewed(PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(text, encoding="utf-8")
    PICTURE.write_text(picture, encoding="utf-8")
