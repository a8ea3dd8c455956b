"""Writes a script for a case, runs it as its reader will, and keeps it if it shows the failure."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import packages_distributions, version
from itertools import product
from pathlib import Path

from conformance.adapter.loading import file_of, function_of
from conformance.adapter.trainer_files import package_root
from conformance.cases.case import Case
from conformance.report.card import Card
from conformance.report.text import visible, write
from conformance.repro.script import function_in, script
from conformance.repro.showing import TIMEOUT, CannotShow, Ending, Shows, shown
from conformance.repro.sources import CannotCopy, Source
from conformance.runner.rank.environment import base_environment
from conformance.verdict.judgement import Judgement

#: A script trains a few windows; its processes import torch.
TIME_LIMIT = 120
_FORBIDDEN = 'raise ImportError("a standalone script imports no {}")\n'


@dataclass(frozen=True)
class Run:
    """How a script ended; ``output`` is everything that it printed."""

    code: int | None
    output: str

    @property
    def lines(self) -> list[str]:
        return self.output.strip().splitlines() or ["it printed nothing"]


def run(script: Path, folder: Path) -> Run:
    """Runs a script, as if it were in ``folder``, in a new process that cannot import this package."""
    package = __name__.partition(".")[0]
    with tempfile.TemporaryDirectory() as forbidden:
        Path(forbidden, f"{package}.py").write_text(_FORBIDDEN.format(package))
        path = os.pathsep.join([forbidden, str(folder.resolve())])
        environment = {**base_environment(os.environ), "PYTHONPATH": path}
        command = [sys.executable, str(script)]
        try:
            ended = subprocess.run(
                command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TIME_LIMIT
            )
        except subprocess.TimeoutExpired as expired:
            return Run(None, (expired.stdout or b"").decode(errors="replace"))
    return Run(ended.returncode, ended.stdout.decode(errors="replace"))


def is_shown(ran: Run, shows: Shows, names: Sequence[str]) -> bool:
    """Whether a script exits with 1 and shows the case's failure: the same value, or the same end. ``names``: of the
    values."""
    if ran.code != 1:
        return False
    if isinstance(shows, Ending):
        # Which rank raises first is a race.
        return any(_plain(one) in _plain(ran.output) for one in shows.errors or [TIMEOUT])
    if not shows.seen:
        return "expected the same values on all ranks" in ran.output
    observed = (f"{names[index]} on rank {rank}: observed {value!r}," for rank, index, value in shows.seen)
    return any(one in ran.output for one in observed)


def _plain(text: str) -> str:
    """The text without what differs between runs: folders, and numbers of ports, processes and lines. Characters that
    no stream can encode become the escapes that Python prints."""
    return re.sub(r"\d+", "0", re.sub(r"/[^\s'\"]*/", "/", visible(text)))


_TITLE = '''"""{title}

{where}{about}
"""
'''
_ABOUT = (
    "The trainer fails {case}, as trainer-conformance {version} found. This script prints the observed and expected "
    "values, and exits with 1 while they differ. It was run with {versions}."
)


@dataclass(frozen=True)
class Written:
    """A script that was kept: what it shows, and the lines that it printed."""

    shows: Shows
    lines: list[str]


def written(
    case: Case, judgement: Judgement, target: str, card: Card, output: Path, run: Callable[[Path, Path], Run] = run
) -> Written:
    """Writes ``output`` and runs it with ``run``. ``card``: why the case fails.

    Raises:
        CannotShow: no script shows the failure; ``output`` is not written.
        CannotCopy: the trainer's source cannot be part of a script.
    """
    found = shown(judgement, case.problem)
    # A bug of the first resume shows without a second one.
    cases = [replace(case, resumed="once"), case] if case.resumed == "twice" else [case]
    # Next to the file that it replaces: there the script finds the modules that the trainer imports.
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".repro-") as folder:
        unproven = Path(folder, output.name)
        for shows, as_case in product(found, cases):
            write(unproven, _documented(text(as_case, shows, target), card, case.id))
            ran = run(unproven, output.parent)
            if is_shown(ran, shows, case.problem.workload.model.elements):
                unproven.replace(output)
                return Written(shows, ran.lines)
    hint = "; write the script next to that module, with --output" if "ModuleNotFoundError" in ran.output else ""
    raise CannotShow(
        f"a script with only the trainer's source does not fail as {case.id} does; its last line: {ran.lines[-1]}{hint}"
    )


def text(case: Case, shows: Shows, target: str) -> str:
    """The script with the trainer that ``target`` names, without its docstring.

    Raises CannotCopy, CannotShow.
    """
    file = file_of(target)
    if file is None:
        raise CannotCopy(f"the file of {target} was not found: name it as path.py:function")
    source = Source.of(file)
    return script(case, shows, source, function_in(source, function_of(target)), _package_of(file))


def _documented(body: str, card: Card, case: str) -> str:
    """Adds a docstring that says what the script shows."""
    about = _ABOUT.format(case=case, version=version("trainer-conformance"), versions=_versions(body))
    where = [*([f"at: {card.where}"] if card.where else []), *card.source_lines()]
    words = {
        "title": "\n".join(textwrap.wrap(card.title, 115)),
        "where": "".join(f"{line}\n" for line in [*where, ""]) if where else "",
        "about": "\n".join(textwrap.wrap(about, 115)),
    }
    # The title may quote the trainer.
    safe = {name: visible(text).replace("\\", "\\\\").replace('"""', "'''") for name, text in words.items()}
    return _TITLE.format(**safe) + "\n" + body


def _versions(body: str) -> str:
    """The versions of the distributions that a script imports."""
    imported = [node for node in ast.walk(ast.parse(body)) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [alias.name for node in imported if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in imported if isinstance(node, ast.ImportFrom) and node.module]
    roots = dict.fromkeys(name.partition(".")[0] for name in names)
    known = packages_distributions()
    found = {name for root in roots if root not in sys.stdlib_module_names for name in known.get(root, ())}
    return ", ".join(f"{name} {version(name)}" for name in sorted(found))


def _package_of(file: Path) -> str:
    """The dotted name of the package that a file is in; empty if it is in none."""
    root = package_root(file.resolve())
    return "" if root is None else ".".join(file.resolve().parent.relative_to(root).parts)
