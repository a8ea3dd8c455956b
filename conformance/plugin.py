"""The pytest face: options, items and markers.

Loaded in every pytest run where this package is installed, so nothing heavy is imported before the suite is collected,
and the options exist only in runs of the suite: a project's own ``--backend`` must not clash with ours.
"""

from __future__ import annotations

import argparse
import copy
import warnings
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from conformance.adapter.declaration import BACKENDS, PRECISIONS

if TYPE_CHECKING:
    from conformance.runner.front.zygote_process import ZygoteProcess
    from conformance.suite.items import Servers


def _marker(name: str) -> str:
    """The pytest marker of a backend or a precision."""
    return name.replace("-", "_")


MARKERS = (*map(_marker, (*BACKENDS, *PRECISIONS)), "cuda")
TIME_LIMIT = 60.0
LONGEST_TIME_LIMIT = 86_400.0


def time_limit(text: str) -> float:
    """The seconds that an option gives.

    Raises:
        argparse.ArgumentTypeError: no such time limit is possible.
    """
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= LONGEST_TIME_LIMIT:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0, up to a day")
    return seconds


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, parser: pytest.Parser, args: list[str]) -> None:
    """Add the options, if this is a run of the suite. Arguments are known only here, and read again once it is done."""
    ours = ("conformance.suite", "conformance/suite")
    if any(argument.startswith("--trainer") or any(name in argument for name in ours) for argument in args):
        _add_options(parser)
        known = copy.copy(early_config.known_args_namespace)
        known.file_or_dir = []
        early_config.known_args_namespace = parser.parse_known_args(args, namespace=known)


def _add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance", "conformance of distributed trainers")
    group.addoption(
        "--trainer",
        action="append",
        default=[],
        metavar="TARGET",
        help="a trainer under test: path.py, path.py:function, package.module:function, or the name of a "
        "reference trainer; may be given several times (default: the reference trainers)",
    )
    group.addoption(
        "--backend",
        action="append",
        default=[],
        choices=BACKENDS,
        help="only this backend; may be given several times (default: all that a trainer declares)",
    )
    group.addoption(
        "--case",
        action="append",
        default=[],
        metavar="ID",
        help="only this case, or the cases whose id begins so: ddp-w2-acc2-fp16-clip-value, ddp-w2",
    )
    group.addoption(
        "--time-limit",
        type=time_limit,
        default=TIME_LIMIT,
        metavar="SECONDS",
        help=f"how long a case may take before it is a HANG (default: {TIME_LIMIT:g})",
    )
    group.addoption(
        "--traces",
        metavar="FOLDER",
        help="write what each rank of each case did to FOLDER/<trainer>/<case>/rank<r>.jsonl (default: do not)",
    )


def pytest_configure(config: pytest.Config) -> None:
    for marker in MARKERS:
        config.addinivalue_line("markers", f"{marker}: conformance cases on or in {marker}")
    if (zygote := getattr(config, "workerinput", {}).get(_ZYGOTE)) is not None:
        from conformance.runner.front.zygote_client import shared

        shared.join(zygote)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """Import torch once for all workers; it begins while they start."""
    if config.getoption("trainer", None) is not None:
        from conformance.runner.front.zygote_process import ZygoteProcess

        config.stash[ZYGOTE] = ZygoteProcess()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    zygote = node.config.stash.get(ZYGOTE, None)
    if zygote is not None and node.gateway.spec.popen:
        node.workerinput[_ZYGOTE] = zygote.address


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module.__name__ != "conformance.suite.test_conformance":
        return
    from conformance.runner.front.client import RunnerError
    from conformance.suite.items import BadInput, SlowPath, collect

    selected = [metafunc.config.getoption(name, []) for name in ("trainer", "backend", "case")]
    try:
        items = collect(_servers(metafunc.config), *selected)
    except RunnerError as error:
        raise pytest.Collector.CollectError(f"the harness failed: {error}") from error
    for reason in _servers(metafunc.config).slow:
        # Not raised: whatever filters there are, a user has to learn of it, and none may make it an error.
        warning = warnings.WarningMessage(SlowPath(reason), SlowPath, __file__, 0)
        metafunc.config.hook.pytest_warning_recorded.call_historic(
            kwargs={"warning_message": warning, "when": "collect", "nodeid": "", "location": None}
        )
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
    """Attach the result to the report as plain values, which is how it crosses from an xdist worker."""
    report = yield
    if report.when == "call":
        report.conformance = getattr(item, "conformance", None)
        report.bad_input = getattr(item, "bad_input", None)
    return report


@pytest.fixture(scope="session")
def conformance_servers(pytestconfig: pytest.Config) -> Servers:
    """The processes that hold the trainers, started on demand."""
    return _servers(pytestconfig)


@pytest.fixture(scope="session")
def conformance_time_limit(pytestconfig: pytest.Config) -> float:
    return float(pytestconfig.getoption("time_limit", TIME_LIMIT))


@pytest.fixture(scope="session")
def conformance_traces(pytestconfig: pytest.Config) -> Path | None:
    """The folder for traces, if they are wanted."""
    folder = pytestconfig.getoption("traces", None)
    return None if folder is None else Path(folder)


def pytest_unconfigure(config: pytest.Config) -> None:
    servers = config.stash.get(SERVERS, None)
    if servers is not None:
        servers.close()
    zygote = config.stash.get(ZYGOTE, None)
    if zygote is not None:
        zygote.close()


SERVERS: pytest.StashKey[Servers] = pytest.StashKey()
ZYGOTE: pytest.StashKey[ZygoteProcess] = pytest.StashKey()
# Under which workers are told its address.
_ZYGOTE = "conformance_zygote"


def _servers(config: pytest.Config) -> Servers:
    from conformance.suite.items import Servers

    if SERVERS not in config.stash:
        config.stash[SERVERS] = Servers()
    return config.stash[SERVERS]
