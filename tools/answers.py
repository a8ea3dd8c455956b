"""Writes the answers of the default run into the package, for a wheel: the first run of a user does not compute them.

    python tools/answers.py [ARGUMENT...]

It judges the reference trainers with an empty cache, and ships what was kept. The arguments are those of
`conformance run`: fewer cases have fewer answers.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from conformance.workloads import kept_answers


def main(arguments: list[str]) -> None:
    """Raises CalledProcessError if a reference trainer fails."""
    kept_answers.SHIPPED.unlink(missing_ok=True)
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "conformance", "run", *arguments, "--output", str(Path(folder, "output"))]
        subprocess.run(command, env=os.environ | {"XDG_CACHE_HOME": folder}, check=True)
        [own] = Path(folder, "trainer-conformance", "answers").iterdir()
        kept_answers.ship(own)
    print(f"{kept_answers.SHIPPED}: {len(kept_answers.shipped())} answers, {kept_answers.SHIPPED.stat().st_size} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
