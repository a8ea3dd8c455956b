"""Runs in a separate process: reads the file of answers, and calls its functions on request.

It imports only the standard library, and returns only facts: the result, or what went wrong and where.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import signal
import sys
import types
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

Facts = dict[str, Any]


class _TooLong(BaseException):
    """The time is over; no ``except Exception`` keeps it."""


def _ring(signum: int, frame: types.FrameType | None) -> None:
    raise _TooLong


def timed(action: Callable[[], Facts], limit: float, file: str) -> Facts:
    """What ``action`` gives, or how it ended, with the line of ``file`` where that was."""
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        return action()
    except _TooLong as error:
        return {"kind": "endless", "text": "", "line": _line(error, file)}
    except SyntaxError as error:
        return {"kind": "syntax", "text": error.msg, "line": error.lineno if error.filename == file else None}
    except BaseException as error:  # whatever somebody's code raises, SystemExit among it, is a fact about that code
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return {"kind": "raised", "text": text.splitlines()[0], "line": _line(error, file)}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _line(error: BaseException, file: str) -> int | None:
    """The innermost line of ``file`` that ``error`` came through."""
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def read(file: str, module: types.ModuleType) -> Facts:
    """Runs ``file`` as ``module``, which keeps what was defined should it end early."""
    source = Path(file).read_bytes()
    exec(compile(source, file, "exec"), vars(module))
    return {"kind": "read", "text": "", "line": None}


def called(module: types.ModuleType, name: str, positional: list[Any], named: dict[str, Any]) -> Facts:
    function = vars(module)[name]
    if not callable(function):
        return {"kind": "signature", "text": f"it is not a function but {function!r:.60}", "line": None}
    try:
        inspect.signature(function).bind(*positional, **named)
    except TypeError as error:
        return {"kind": "signature", "text": str(error), "line": None}
    except ValueError:
        # Some callables written in C have no signature; calling them shows whether the arguments fit.
        pass
    result = function(*positional, **named)
    value = number(result)
    kind = "other" if value is None else "number"
    return {"kind": kind, "text": f"{result!r:.80}", "line": None, "value": value}


def number(result: Any) -> str | None:
    """The exact value of a finite number, as a fraction in words; None if ``result`` is none."""
    if isinstance(result, bool | str | bytes) or result is None:
        return None
    try:
        exact = result if isinstance(result, int | Fraction | Decimal) else float(result)
        return str(Fraction(exact))
    except (TypeError, ValueError, OverflowError):
        return None


def main(file: str, descriptor: str, limit: str) -> None:
    asked = Connection(int(descriptor))
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nowhere, standard)
    signal.signal(signal.SIGALRM, _ring)
    sys.path.insert(0, str(Path(file).parent))
    module = types.ModuleType(Path(file).stem)
    module.__file__ = file
    sys.modules.setdefault(module.__name__, module)
    facts = timed(partial(read, file, module), float(limit), file)
    asked.send_bytes(json.dumps(facts | {"names": sorted(vars(module))}).encode())
    while True:
        try:
            name, positional, named = ast.literal_eval(asked.recv_bytes().decode())
        except EOFError:
            # Nothing more is asked, and threads that somebody's file started must not keep the process.
            os._exit(0)
        facts = timed(partial(called, module, name, positional, named), float(limit), file)
        asked.send_bytes(json.dumps(facts).encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
