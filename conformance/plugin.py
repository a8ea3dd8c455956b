"""Pytest plugin: loads `conformance.suite.hooks` for `pytest --pyargs conformance.suite`, and lets any test watch its
training.

pytest loads this module wherever the package is installed. It imports nothing heavy, and it adds its options only in
runs of the suite: a project's own ``--backend`` must not clash with them.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Generator, Iterator
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conformance.watch.inside import Watch

_OURS = ("conformance.suite", "conformance/suite")
_WATCHING = pytest.StashKey[ExitStack]()


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, parser: pytest.Parser, args: list[str]) -> None:
    """Load the suite's hooks. Arguments are known only here; they are parsed again once the options exist."""
    if any(argument.startswith("--trainer") or any(name in argument for name in _OURS) for argument in args):
        early_config.pluginmanager.import_plugin("conformance.suite.hooks")
        early_config.pluginmanager.import_plugin("conformance.suite.expecting")
        known = copy.copy(early_config.known_args_namespace)
        known.file_or_dir = []
        known = parser.parse_known_args(args, namespace=known)
        args += importlib.import_module("conformance.suite.expecting").configured(early_config, known)
        early_config.known_args_namespace = parser.parse_known_args(args, namespace=known)


@pytest.fixture
def conformance_watch(request: pytest.FixtureRequest) -> Iterator[Watch]:
    """Watches the optimizers that step in this test and in the processes that it starts and waits for. The test fails
    if they do not conform, or if that is undecided."""
    from conformance.watch.inside import watching

    with suppress(_Over), ExitStack() as stack:
        found = stack.enter_context(watching())
        request.node.stash[_WATCHING] = stack
        yield found
        # A test that did not run has nothing to judge.
        raise _Over


class _Over(Exception):
    pass


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Ends the watch with the test's call: the test fails, not its teardown."""
    stack = item.stash.get(_WATCHING, None)
    if stack is None:
        return (yield)
    from conformance.watch.inside import NotConforming

    try:
        with stack:
            return (yield)
    except NotConforming as error:
        reason = str(error)
    # Outside the handler; inside it, pytest shows the error twice.
    pytest.fail(reason, pytrace=False)
