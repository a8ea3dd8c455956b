"""The options of a run, which `conformance run` and pytest share."""

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
    """Parse seconds.

    Raises:
        argparse.ArgumentTypeError: no such time limit is possible.
    """
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= LONGEST_TIME_LIMIT:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time limit; write seconds, more than 0 and at most a day, such as 60"
        )
    return seconds


def whole_number(of: str) -> Callable[[str], int]:
    """Parses how many there are of something, from 1; raises argparse.ArgumentTypeError."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < 1:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number of {of}; write a whole number from 1")
        return int(text)

    return parse


#: By name, what argparse's `add_argument` and pytest's `addoption` both take. None stands for what is not given, so
#: that it can be looked up in the project's configuration first.
OPTIONS: dict[str, dict[str, Any]] = {
    "--backend": {
        "action": "append",
        "choices": BACKEND_NAMES,
        "help": "only this backend; may be given several times (default: all that the trainer declares)",
    },
    "--case": {
        "action": "append",
        "metavar": "CASE",
        "help": "only this case: its id, or the beginning of ids, as in ddp-w2, or a pattern, as in 'ddp-*-clip*', or "
        "values of its fields, as in backend=ring,world_size=2; may be given several times, to run all cases that any "
        "of them selects",
    },
    "--thorough": {
        "action": "store_true",
        "default": None,
        "help": "so many cases that any three of kind of model, recipe, world size, accumulation and precision meet "
        "(default: that each path meets each precision, and each workload each world size and accumulation)",
    },
    "--time-limit": {
        "type": time_limit,
        "metavar": "SECONDS",
        "help": "how long a case may take before it is a HANG, and the import of a trainer before it fails "
        f"(default: {TIME_LIMIT:g})",
    },
    "--traces": {
        "type": Path,
        "metavar": "FOLDER",
        "help": "write what each rank of each case did to FOLDER/<trainer>/<case>/rank<r>.jsonl (default: do not)",
    },
}


#: Those that select cases.
SELECTING = ("trainer", "backend", "case")


def sendable(target: str) -> str:
    """A target as UTF-8 text, which is all that xdist can send: bytes of a file's name that are none become escapes."""
    return target.encode(errors="backslashreplace").decode()


def received(text: str) -> str:
    """The inverse of `sendable`."""
    return re.sub(r"\\udc([89a-f][0-9a-f])", lambda match: chr(0xDC00 + int(match[1], 16)), text)


#: By attribute, what is in effect where neither the command line nor the configuration says anything.
DEFAULTS: dict[str, Any] = {"backend": (), "case": (), "thorough": False, "time_limit": TIME_LIMIT}


def add_defaults(options: argparse.Namespace) -> None:
    """Put the defaults where nothing is given."""
    for name, default in DEFAULTS.items():
        if getattr(options, name, default) is None:
            setattr(options, name, default)


def add_options(add: Callable[..., object], only: Iterable[str] = OPTIONS) -> None:
    """Call ``add``, which is argparse's `add_argument` or pytest's `addoption`, for each option."""
    for name in only:
        add(name, **OPTIONS[name])


def add_trainers(parser: argparse.ArgumentParser) -> None:
    """The trainers to run; a shell completes files and our own."""
    trainers = parser.add_argument(
        "trainer",
        nargs="*",
        action="extend",
        help="path.py, path.py:function, package.module:function, or one that comes with this package: "
        f"{', '.join(reference_names())} (default: all but those of frameworks)",
    )
    parser.add_argument(
        "--trainer",
        action="append",
        metavar="TARGET",
        help="another one; all stands for all trainers of the files that are named",
    )
    files = FilesCompleter(("py",))
    trainers.completer = lambda prefix, **of: [*reference_names(), *files(prefix, **of)]  # type: ignore[attr-defined]


def arguments(values: Mapping[str, Any]) -> Iterator[str]:
    """The command line that gives the options these values, by their names as attributes."""
    for name in OPTIONS:
        value = values[name.removeprefix("--").replace("-", "_")]
        if value is True:
            yield name
        elif value is not None and value is not False:
            yield from (f"{name}={each}" for each in (value if isinstance(value, list | tuple) else [value]))
