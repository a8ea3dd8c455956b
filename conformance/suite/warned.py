"""Warnings of the suite, as pytest shows them. They are not raised: users must see them whatever filters they have, and
no filter may turn them into errors."""

from __future__ import annotations

import warnings
from typing import Literal

import pytest


class SlowPath(UserWarning):
    """Why the cases of a trainer take long, and what to do. A warning, because pytest's workers pass warnings on."""


class Undeclared(UserWarning):
    """What a trainer does at its user's expense, and what to do."""


def warn(config: pytest.Config, warning: UserWarning, when: Literal["collect", "runtest"], nodeid: str = "") -> None:
    """Show ``warning`` in pytest's summary, once however many tests have it."""
    message = warnings.WarningMessage(warning, type(warning), __file__, 0)
    config.hook.pytest_warning_recorded.call_historic(
        kwargs={"warning_message": message, "when": when, "nodeid": nodeid, "location": None}
    )
