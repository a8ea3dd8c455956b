"""``conformance init``: write an adapter to start from."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from argcomplete.completers import FilesCompleter
from rich.console import Console
from rich.text import Text

from conformance.cli.exits import CONFORMING, USAGE, say
from conformance.init.adapter import NoScript, from_scratch, from_script
from conformance.report.text import plural

DESCRIPTION = (
    "Write an adapter with comments. Without a script, the adapter runs as it is. For a training script, it is a copy "
    "that takes model, optimizer, data and loss from the task. No file is overwritten."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    script = parser.add_argument("script", nargs="?", type=Path, help="a training script (default: none)")
    script.completer = FilesCompleter(("py",))  # type: ignore[attr-defined]
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="the adapter (default: my_trainer.py in the current folder, or conform_SCRIPT.py next to the script)",
    )


def main(options: argparse.Namespace, command: str, console: Console) -> int:
    script: Path | None = options.script
    if script is not None and os.path.isdir(script):
        return say(f"{script} is a folder; name the training script in it", USAGE)
    default = Path("my_trainer.py") if script is None else script.with_name(f"conform_{script.name}")
    adapter: Path = options.output or default
    if adapter.suffix != ".py":
        return say(f"{adapter}: an adapter is a Python file; its name must end in .py", USAGE)
    found = None
    try:
        if script is None:
            text = from_scratch()
        else:
            text, found = from_script(script, adapter)
        with adapter.open("x", encoding="utf-8") as file:
            file.write(text)
    except NoScript as error:
        return say(str(error), USAGE)
    except FileExistsError:
        return say(f"{adapter} exists and was not changed; name another file with --output", USAGE)
    except OSError as error:
        return say(f"cannot write {adapter}: {error.strerror}; name another file with --output", USAGE)
    console.print(Text(f"Wrote {adapter}."), soft_wrap=True)
    if found is not None:
        console.print(Text(f"Check {plural(len(found.changes), 'line')} marked # conformance in it."))
        for number, line in enumerate(text.splitlines(), start=1):
            if (check := line.partition("# conformance: CHECK: ")[2]) and line.lstrip().startswith("#"):
                console.print(Text(f"{adapter}:{number}: {check}", "yellow"), soft_wrap=True)
    console.print(Text(f"Next: conformance smoke {adapter}"), soft_wrap=True)
    return CONFORMING
