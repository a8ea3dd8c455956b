"""The suite's pytest hooks: options, items, markers, fixtures, warnings, and a shared import of torch."""

from __future__ import annotations

import gc
import json
import warnings
from collections.abc import Generator
from typing import Any, Literal

import pytest

from conformance.adapter.declaration import BACKEND_NAMES, PRECISIONS
from conformance.runner.front.client import RunnerError
from conformance.runner.front.zygote_client import ZygoteProcess, shared
from conformance.suite.items import BadInput, Item, collect
from conformance.suite.options import add_defaults, add_options, received
from conformance.suite.servers import Servers
from conformance.workloads.kept_answers import ANSWERS

SERVERS: pytest.StashKey[Servers] = pytest.StashKey()
ZYGOTE: pytest.StashKey[ZygoteProcess] = pytest.StashKey()
#: The target and id of each case that an earlier run finished; these are not run again.
FINISHED: pytest.StashKey[list[list[str]]] = pytest.StashKey()
# Names of the values that workers get: its address, and these cases.
_ZYGOTE, _FINISHED = "conformance_zygote", "conformance_finished"


def _marker(name: str) -> str:
    """The pytest marker of a backend or a precision."""
    return name.replace("-", "_")


MARKERS = (*map(_marker, (*BACKEND_NAMES, *PRECISIONS)), "cuda")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance", "conformance of distributed trainers")
    group.addoption(
        "--trainer",
        action="append",
        type=received,
        metavar="TARGET",
        help="a trainer under test: path.py, path.py:function, package.module:function, or the name of a reference "
        "trainer; 'all' means all trainers of the named files; repeatable "
        "(default: the reference trainers)",
    )
    add_options(group.addoption)


def pytest_configure(config: pytest.Config) -> None:
    add_defaults(config.option)
    for marker in MARKERS:
        config.addinivalue_line("markers", f"{marker}: conformance cases on or in {marker}")
    ANSWERS.keep()
    if (zygote := getattr(config, "workerinput", {}).get(_ZYGOTE)) is not None:
        shared.join(zygote)
    if (finished := getattr(config, "workerinput", {}).get(_FINISHED)) is not None:
        config.stash[FINISHED] = json.loads(finished)


def pytest_unconfigure(config: pytest.Config) -> None:
    # Pytest then looks for garbage five times, in objects that end with the process.
    gc.freeze()
    ANSWERS.folder = None
    if (servers := config.stash.get(SERVERS, None)) is not None:
        servers.close()
    if (zygote := config.stash.get(ZYGOTE, None)) is not None:
        zygote.close()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """Imports torch once for all workers, while they start."""
    config.stash[ZYGOTE] = ZygoteProcess()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput[_FINISHED] = json.dumps(node.config.stash.get(FINISHED, []))
    zygote = node.config.stash.get(ZYGOTE, None)
    if zygote is not None and node.gateway.spec.popen:
        node.workerinput[_ZYGOTE] = zygote.address


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Removes the cases that an earlier run finished."""
    finished = {(target, id) for target, id in config.stash.get(FINISHED, ())}
    if finished:
        items[:] = [item for item in items if _name(item) not in finished]


def pytest_collection_finish() -> None:
    # The objects of now stay; scanning them for garbage takes longer than scanning those of all cases.
    gc.freeze()


def _name(item: pytest.Item) -> tuple[str, str] | None:
    """The target and id of a test's case."""
    planned = (
        item.callspec.params.get("item") if isinstance(item, pytest.Function) and hasattr(item, "callspec") else None
    )
    return (planned.target, planned.case.id) if isinstance(planned, Item) else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module.__name__ != "conformance.suite.test_conformance":
        return
    selected = [metafunc.config.getoption(name) or () for name in ("trainer", "backend", "case")]
    try:
        items = collect(servers(metafunc.config), *selected, thorough=metafunc.config.getoption("thorough"))
    except RunnerError as error:
        raise pytest.Collector.CollectError(f"the harness failed: {error}") from error
    for reason in servers(metafunc.config).slow:
        warn(metafunc.config, SlowPath(reason), "collect")
    several = len({item.target for item in items}) > 1
    parameters = []
    for item in items:
        if isinstance(item, BadInput):
            parameters.append(pytest.param(item, id=f"{item.target}{item.MARK}"))
            continue
        names = (_marker(item.case.backend), _marker(item.case.precision), item.case.device)
        marks = [getattr(pytest.mark, name) for name in names if name in MARKERS]
        identifier = f"{item.trainer}:{item.case.id}" if several else item.case.id
        parameters.append(pytest.param(item, id=identifier, marks=marks))
    metafunc.parametrize("item", parameters)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Moves the result to the report as plain values, which can cross from an xdist worker. The item lives until the
    end of the run, and must not keep the result."""
    report = yield
    if report.when == "call":
        report.conformance = vars(item).pop("conformance", None)
        report.bad_input = getattr(item, "bad_input", None)
    return report


def servers(config: pytest.Config) -> Servers:
    """The processes that run the trainers, started on demand."""
    if SERVERS not in config.stash:
        config.stash[SERVERS] = Servers(config.getoption("time_limit"))
    return config.stash[SERVERS]


class SlowPath(UserWarning):
    """Why a trainer's cases are slow, and what to do. A warning, because pytest's workers forward warnings."""


class Undeclared(UserWarning):
    """Behaviour of a trainer that costs its user something, and what to do."""


def warn(config: pytest.Config, warning: UserWarning, when: Literal["collect", "runtest"], nodeid: str = "") -> None:
    """Shows ``warning`` in pytest's summary, once for all tests that have it."""
    message = warnings.WarningMessage(warning, type(warning), __file__, 0)
    config.hook.pytest_warning_recorded.call_historic(
        kwargs={"warning_message": message, "when": when, "nodeid": nodeid, "location": None}
    )
