"""Frames that Python passes over when it looks for the line that a warning is about.

A function that warns its caller, such as the step of a scheduler that comes too early, names that by `stacklevel`. What
is around a replaced function would be named instead, with its line for that of the script, and what Python shows once a
line, once for all lines of the script.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import CodeType, FunctionType, MethodType
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])

_MARK = " <importlib._bootstrap>"
"""Python knows the frames of its import system, which no warning is about, by both words in their files' names."""


def passed_over(function: _Function) -> _Function:
    """The same function, whose frame is passed over; what is no function or method of Python is given back."""
    found: Any = function
    if isinstance(function, MethodType):
        found = MethodType(passed_over(function.__func__), function.__self__)
    elif isinstance(function, FunctionType):
        found = FunctionType(
            marked(function.__code__),
            function.__globals__,
            function.__name__,
            function.__defaults__,
            function.__closure__,
        )
        found.__kwdefaults__, found.__module__ = function.__kwdefaults__, function.__module__
        found.__dict__.update(function.__dict__)
    same: _Function = found
    return same


@cache
def marked(code: CodeType) -> CodeType:
    """The code of a function that is passed over."""
    return code.replace(co_filename=code.co_filename + _MARK)
