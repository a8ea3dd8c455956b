"""Runs the benchmarks one after the other and prints one table of their ratios, each with its peer and limit.

    python -m benchmarks [--old FOLDER]

With nothing else running it takes less than ten minutes. ``--old``: a checkout of an older commit, whose commands take
turns with the present ones.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import NamedTemporaryFile

FOLDER = Path(__file__).parent
# The scripts import each other by their names, also where they start processes.
sys.path.insert(0, str(FOLDER))

from measuring import ROWS, show  # noqa: E402

SCRIPTS = {
    "commands.py": (),
    "launchers.py": ("--rounds", "3"),
    "overhead.py": ("--rounds", "5"),
    "recorder.py": ("--rounds", "10"),
    "laws.py": ("--repetitions", "2"),
    "watch_judge.py": ("--steps", "500", "--repetitions", "2"),
    "watch.py": ("--steps", "30"),
    "watch.py, sampled": ("--steps", "30", "--every", "100"),
}
"""Their arguments, for a short run."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="One table of all benchmarks.")
    parser.add_argument("--old", metavar="FOLDER", help="a checkout of an older commit")
    old = parser.parse_args().old
    rows, failed = [], []
    for name, arguments in SCRIPTS.items():
        script = name.partition(",")[0]
        words = [*arguments, *(("--old", os.path.abspath(old)) if old and script == "commands.py" else ())]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(FOLDER.parent), os.environ.get("PYTHONPATH", "")])
        }
        with NamedTemporaryFile("r") as file:
            command = [sys.executable, str(FOLDER / script), *words]
            if subprocess.run(command, env=environment | {ROWS: file.name}, check=False).returncode:
                failed.append(name)
            rows += [(*json.loads(line), f"{script} {' '.join(arguments)}".strip()) for line in file]
    note = f"Failed: {', '.join(failed)}" if failed else ""
    show("Benchmarks", ("what", "compared with", "ratio", "limit", "command"), [rows], note)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
