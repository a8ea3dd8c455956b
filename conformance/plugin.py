"""Makes `pytest --pyargs conformance.suite` work: loads `conformance.suite.hooks` where the suite is run.

pytest loads this wherever the package is installed. So nothing heavy is imported here, and the options exist only in
runs of the suite: a project's own ``--backend`` must not clash with ours.
"""

from __future__ import annotations

import copy
import importlib

import pytest

_OURS = ("conformance.suite", "conformance/suite")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, parser: pytest.Parser, args: list[str]) -> None:
    """Arguments are known only here; they are read again once there are options for them."""
    if any(argument.startswith("--trainer") or any(name in argument for name in _OURS) for argument in args):
        early_config.pluginmanager.import_plugin("conformance.suite.hooks")
        early_config.pluginmanager.import_plugin("conformance.suite.expecting")
        known = copy.copy(early_config.known_args_namespace)
        known.file_or_dir = []
        known = parser.parse_known_args(args, namespace=known)
        args += importlib.import_module("conformance.suite.expecting").configured(early_config, known)
        early_config.known_args_namespace = parser.parse_known_args(args, namespace=known)
