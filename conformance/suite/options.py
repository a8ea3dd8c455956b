"""The options that `conformance run` and pytest share."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from argcomplete.completers import FilesCompleter

from conformance.adapter.declaration import BACKEND_NAMES
from conformance.adapter.loading import reference_names

TIME_LIMIT = 60.0
LONGEST_TIME_LIMIT = 86_400.0


def time_limit(text: str) -> float:
    """Parses seconds.

    Raises:
        argparse.ArgumentTypeError: the text is not a valid time limit.
    """
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= LONGEST_TIME_LIMIT:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time limit; write seconds, more than 0 and at most a day (86400), such as 60"
        )
    return seconds


def whole_number(of: str) -> Callable[[str], int]:
    """Parses a number of things, at least 1; raises argparse.ArgumentTypeError."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < 1:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number of {of}; write a whole number of at least 1")
        return int(text)

    return parse


#: By name, the arguments of both argparse's `add_argument` and pytest's `addoption`. None means not given: then the
#: project's configuration is read.
OPTIONS: dict[str, dict[str, Any]] = {
    "--backend": {
        "action": "append",
        "choices": BACKEND_NAMES,
        "help": "only this backend; repeatable (default: all that the trainer supports)",
    },
    "--case": {
        "action": "append",
        "metavar": "CASE",
        "help": "only matching cases: an id, the start of ids, as in ddp-w2, a pattern, as in 'ddp-*-clip*', or values "
        "of fields, as in backend=ring,world_size=2; repeatable, to run cases that match any",
    },
    "--thorough": {
        "action": "store_true",
        "default": None,
        "help": "more cases: any three of kind of model, recipe, world size, accumulation and precision meet (default: "
        "each path meets each precision, and each workload each world size and accumulation)",
    },
    "--time-limit": {
        "type": time_limit,
        "metavar": "SECONDS",
        "help": f"seconds before a running case is a HANG, or the import of a trainer fails (default: {TIME_LIMIT:g})",
    },
    "--traces": {
        "type": Path,
        "metavar": "FOLDER",
        "help": "write what each rank of each case does to FOLDER/<trainer>/<case>/rank<r>.jsonl (default: do not)",
    },
}


#: Options that select cases.
SELECTING = ("trainer", "backend", "case")


def sendable(target: str) -> str:
    """A target as UTF-8 text, which is all that xdist can send: other bytes of a file name become escapes."""
    return target.encode(errors="backslashreplace").decode()


def received(text: str) -> str:
    """The inverse of `sendable`."""
    return re.sub(r"\\udc([89a-f][0-9a-f])", lambda match: chr(0xDC00 + int(match[1], 16)), text)


#: By attribute, the values used if neither the command line nor the configuration has one.
DEFAULTS: dict[str, Any] = {"backend": (), "case": (), "thorough": False, "time_limit": TIME_LIMIT}


def add_defaults(options: argparse.Namespace) -> None:
    """Sets the defaults of options that are not given."""
    for name, default in DEFAULTS.items():
        if getattr(options, name, default) is None:
            setattr(options, name, default)


def add_options(add: Callable[..., object], only: Iterable[str] = OPTIONS) -> None:
    """Calls ``add``, argparse's `add_argument` or pytest's `addoption`, for each option."""
    for name in only:
        add(name, **OPTIONS[name])


def add_trainers(parser: argparse.ArgumentParser) -> None:
    """Adds the trainers to run; shells complete files and reference trainers."""
    trainers = parser.add_argument(
        "trainer",
        nargs="*",
        action="extend",
        help="path.py, path.py:function, package.module:function, or a trainer of this package: "
        f"{', '.join(reference_names())} (default: all except framework adapters)",
    )
    parser.add_argument(
        "--trainer",
        action="append",
        metavar="TARGET",
        help="another trainer; 'all' means all trainers of the named files",
    )
    files = FilesCompleter(("py",))
    trainers.completer = lambda prefix, **of: [*reference_names(), *files(prefix, **of)]  # type: ignore[attr-defined]


def arguments(values: Mapping[str, Any]) -> Iterator[str]:
    """The command line that sets these option values, given by attribute name."""
    for name in OPTIONS:
        value = values[name.removeprefix("--").replace("-", "_")]
        if value is True:
            yield name
        elif value is not None and value is not False:
            yield from (f"{name}={each}" for each in (value if isinstance(value, list | tuple) else [value]))
