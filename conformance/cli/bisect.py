"""``conformance bisect``: the first release of a framework, or the first commit, that fails a case."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import venv
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.text import Text

from conformance.cli.exits import CONFORMING, NOT_CONFORMING, USAGE, say
from conformance.cli.files import RESULTS
from conformance.report.text import STYLES
from conformance.report.verdicts import worst
from conformance.results import ResultsError, read_results
from conformance.results.result_lines import PASSED, CaseRecord

DESCRIPTION = (
    "Find the first release of a framework, or the first commit, that fails a case. Each one gets a temporary "
    "environment, which shares everything else with this one. One that cannot be installed, or fails "
    "with another verdict than the bad end, is skipped."
)


class CannotBisect(Exception):
    """Nothing to search, an end that is not what it is said to be, or a command that failed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "conformance bisect --good A --bad B [--with REQUIREMENT] -- CASE TRAINER"
    example = "such as accelerate==0.19.0 or git+https://github.com/huggingface/accelerate@v0.19.0"
    parser.add_argument("--good", required=True, metavar="A", help=f"a release or commit that passes, {example}")
    parser.add_argument("--bad", required=True, metavar="B", help="a later one that fails")
    parser.add_argument(
        "--with",
        dest="companions",
        action="append",
        default=[],
        metavar="REQUIREMENT",
        help="install this, too, such as numpy==1.26.4; may be given several times",
    )
    parser.add_argument("case", metavar="CASE", help="the case, as `conformance run --case` takes it")
    parser.add_argument("trainer", metavar="TRAINER", help="the trainer, as `conformance run` takes it")


def main(options: argparse.Namespace, command: str, console: Console) -> int:
    results: dict[str, Sequence[CaseRecord]] = {}

    def passes(candidate: str) -> bool | None:
        try:
            cases = results[candidate] = _judged(found[candidate], options)
        except CannotBisect as error:
            console.print(Text.assemble(f"○ {candidate}", (f"  skipped: {error}", "dim")), soft_wrap=True)
            return None
        look = worst(case.verdict for case in cases)
        console.print(Text.assemble((look.glyph, STYLES[look.tone]), f" {candidate}  {look.verdict}"), soft_wrap=True)
        if all(case.verdict in PASSED for case in cases):
            return True
        failing = {case.verdict for case in results.get(bad, ()) if case.failed}
        return False if any(case.verdict in failing for case in cases) else None

    try:
        with TemporaryDirectory(prefix="conformance-bisect-") as folder:
            found = candidates(options.good, options.bad, Path(folder))
            good, *_, bad = found
            if not passes(good):
                raise CannotBisect(f"{options.good} does not pass {options.case}; name one that does with --good")
            if passes(bad) is not False:
                raise CannotBisect(f"{options.bad} does not fail {options.case}; name one that does with --bad")
            first, skipped = search(list(found), passes)
    except CannotBisect as error:
        return say(str(error), USAGE)
    console.print(Text(f"First that fails: {first}", "bold red"), soft_wrap=True)
    for case in results[first]:
        if case.failed:
            console.print(Text(f"{case.id}: {case.headline}"), soft_wrap=True)
    if skipped:
        console.print(Text(f"Or one of these, which were skipped: {', '.join(skipped)}", "yellow"), soft_wrap=True)
    return CONFORMING


def candidates(good: str, bad: str, folder: Path) -> dict[str, str]:
    """From `good` to `bad`, each with what pip installs for it. Raises CannotBisect."""
    if good.startswith("git+"):
        (url, _, first), (other, _, last) = good.rpartition("@"), bad.rpartition("@")
        if url != other:
            raise CannotBisect(f"{good} and {bad} are not commits of one repository; write git+URL@COMMIT for both")
        clone = folder / "clone"
        _output("git", "clone", "--quiet", "--bare", url.removeprefix("git+"), str(clone))
        after = _output("git", "-C", str(clone), "rev-list", "--reverse", "--first-parent", f"{first}..{last}").split()
        found = {good: good} | {f"{url}@{commit}": f"git+{clone.as_uri()}@{commit}" for commit in after}
    else:
        (name, _, first), (other, _, last) = good.partition("=="), bad.partition("==")
        if name != other or not first or not last:
            raise CannotBisect(f"{good} and {bad} are not releases of one package; write NAME==VERSION for both")
        listed = _output(sys.executable, "-m", "pip", "index", "versions", name).partition("Available versions:")[2]
        versions = re.findall(r"[^\s,]+", listed.partition("\n")[0])[::-1]
        if missing := [version for version in (first, last) if version not in versions]:
            raise CannotBisect(f"{name} has no release {missing[0]}; it has {', '.join(versions)}")
        between = versions[versions.index(first) : versions.index(last) + 1]
        found = {f"{name}=={version}": f"{name}=={version}" for version in between}
    if len(found) < 2:
        raise CannotBisect(f"{bad} does not come after {good}; name the earlier one with --good")
    return found


def search(found: Sequence[str], passes: Callable[[str], bool | None]) -> tuple[str, Sequence[str]]:
    """The first of `found` that fails, by halving, and those right before it for which `passes` returns None.

    The first one passes, and the last one fails.
    """
    low, high, skipped = 0, len(found) - 1, set[int]()
    while between := [number for number in range(low + 1, high) if number not in skipped]:
        middle = between[len(between) // 2]
        verdict = passes(found[middle])
        if verdict is None:
            skipped.add(middle)
        elif verdict:
            low = middle
        else:
            high = middle
    return found[high], found[low + 1 : high]


def _judged(requirement: str, options: argparse.Namespace) -> Sequence[CaseRecord]:
    """The results with this release or commit. Raises CannotBisect."""
    with TemporaryDirectory(prefix="conformance-bisect-") as folder:
        venv.create(folder)
        interpreter = str(Path(folder, "bin", "python"))
        [site] = Path(folder).glob("lib/python*/site-packages")
        # What this interpreter has comes after what is installed there, and pip takes it for installed.
        (site / "shared.pth").write_text("\n".join(path for path in sys.path if path) + "\n")
        pip = (sys.executable, "-m", "pip", "--python", interpreter, "install", "--quiet", "--no-compile")
        _output(*pip, requirement, *options.companions)
        command = (interpreter, "-m", "conformance", "run", options.trainer, "--case", options.case)
        _output(*command, "--output", folder, codes=(CONFORMING, NOT_CONFORMING))
        # Python exits with 1, too, as where a trainer does not conform.
        try:
            return read_results(Path(folder, RESULTS)).cases
        except ResultsError as error:
            raise CannotBisect(str(error)) from error


def _output(*command: str, codes: Sequence[int] = (0,)) -> str:
    """What a command prints. Raises CannotBisect."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise CannotBisect(f"cannot run {command[0]}: {error.strerror}") from error
    if done.returncode not in codes:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise CannotBisect(lines[-1] if lines else f"{command[0]} exited with {done.returncode}")
    return done.stdout
