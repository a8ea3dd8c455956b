"""What the tests of framework adapters share: the verdicts of a whole run, and single cases.

nox's session `tests` leaves this folder out: each file here belongs to the session of its framework.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from conformance.cases.case import Case
from conformance.results import read_results
from conformance.results.records import CaseRecord
from conformance.runner.front.client import ForkServer, RankOutcome, shared
from conformance.suite.servers import Servers
from fixtures.kill import is_caught
from fixtures.kill import judged as judged_specimen
from fixtures.specimens import named


@pytest.fixture(scope="session", autouse=True)
def zygote_is_ended() -> Iterator[None]:
    yield
    shared.close()


@pytest.fixture(scope="module")
def judged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[CaseRecord]:
    """The cases of the module's TARGET, or several, that have a verdict, run by the command line: all, or those of its
    CASES; as many at a time as the machine has cores, or its PROCESSES.
    """
    folder = tmp_path_factory.mktemp("results")
    command = [sys.executable, "-m", "conformance", "run", *request.module.TARGET.split(), "--output", str(folder)]
    command += [word for case in getattr(request.module, "CASES", ()) for word in ("--case", case)]
    command += ["--processes", str(request.module.PROCESSES)] if hasattr(request.module, "PROCESSES") else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    results = read_results(folder / "conformance-results.jsonl")
    assert results.cut_off is None
    return [case for case in results.cases if case.verdict not in ("UNSUPPORTED", "UNAVAILABLE")]


@pytest.fixture
def caught() -> Iterator[Callable[[str], None]]:
    """Hold that a mutant on Ray gets the verdict, and breaks the laws, that it names."""
    servers = Servers()

    def assert_caught(name: str) -> None:
        mutant = named("mutants/on_ray")[name]
        results = judged_specimen(mutant, servers, time_limit=120.0)
        assert is_caught(mutant, results), [(result.verdict, result.headline) for result in results]

    yield assert_caught
    servers.close()


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], str]:
    """Write a trainer to a file; the result is its target."""

    def write_trainer(source: str) -> str:
        path = tmp_path / "trainer.py"
        path.write_text(dedent(source))
        return str(path)

    return write_trainer


@pytest.fixture
def run() -> Callable[[str, Case], tuple[RankOutcome, ...]]:
    """Run one case, in which every rank must come to its end."""

    def run_case(target: str, case: Case) -> tuple[RankOutcome, ...]:
        with ForkServer(target, backend=case.backend) as server:
            assert server.why_slow is None
            outcome = server.run(case.spec(), time_limit=60.0)
        assert [rank.finished for rank in outcome.ranks] == [True] * case.world_size
        return outcome.ranks

    return run_case
