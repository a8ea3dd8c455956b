"""Shared by the tests of framework adapters: the verdicts of a whole run, and single cases.

nox's session `tests` leaves this folder out: each file here belongs to the session of its framework.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from conformance.cases.case import Case
from conformance.results.result_lines import CaseRecord
from conformance.runner.front.client import ForkServer, RankOutcome
from conformance.suite.servers import Servers
from fixtures.kill import is_caught
from fixtures.kill import judged as judged_specimen
from fixtures.specimens import named

from .published import judged_by_command


@pytest.fixture(scope="module")
def judged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[CaseRecord]:
    """The judged cases of the module's TARGET, or several, by the command line: all, or its CASES; in its PROCESSES, or
    one process per core.
    """
    module, folder = request.module, tmp_path_factory.mktemp("results")
    return judged_by_command(folder, module.TARGET, getattr(module, "CASES", ()), getattr(module, "PROCESSES", None))


@pytest.fixture
def caught() -> Iterator[Callable[[str], None]]:
    """Asserts that a mutant on Ray gets the verdict, and breaks the laws, that it names."""
    servers = Servers()

    def assert_caught(name: str) -> None:
        mutant = named("mutants/on_ray")[name]
        results = judged_specimen(mutant, servers, time_limit=120.0)
        assert is_caught(mutant, results), [(result.verdict, result.headline) for result in results]

    yield assert_caught
    servers.close()


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], str]:
    """Writes a trainer to a file; returns its target."""

    def write_trainer(source: str) -> str:
        path = tmp_path / "trainer.py"
        path.write_text(dedent(source))
        return str(path)

    return write_trainer


@pytest.fixture
def run() -> Callable[[str, Case], tuple[RankOutcome, ...]]:
    """Runs one case, in which every rank must finish."""

    def run_case(target: str, case: Case) -> tuple[RankOutcome, ...]:
        with ForkServer(target, backend=case.backend) as server:
            assert server.why_slow is None
            outcome = server.run(case.spec(), time_limit=60.0)
        assert [rank.finished for rank in outcome.ranks] == [True] * case.world_size
        return outcome.ranks

    return run_case
