"""Keeps what goes wrong in the recorder away from the trainer.

All code of the recorder that a trainer's call runs goes through here: wrappers of functions, hooks, and what is called
on entering and leaving a context. If it raises, the trainer gets what it would have got without it, and the observer
that raised is switched off. So is one that is called while a CUDA graph is captured, where reading a tensor would spoil
the capture. Neither notices what the other is in: see `Aside`. Nor do warnings: Python looks for the line that one is
about by `stacklevel`, and passes over the frames that are `passed_over`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache, partial
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any, TypeAlias, TypeVar

from torch import cuda
from torch.compiler import is_dynamo_compiling

from conformance.trace.seams.ours import Aside, ours

_Passed = TypeVar("_Passed", bound=Callable[..., Any])

_MARK = " <importlib._bootstrap>"
"""Python knows the frames of its import system, which no warning is about, by both words in their files' names."""


def passed_over(function: _Passed) -> _Passed:
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
    same: _Passed = found
    return same


@cache
def marked(code: CodeType) -> CodeType:
    """The code of a function that is passed over."""
    return code.replace(co_filename=code.co_filename + _MARK)


Function: TypeAlias = Callable[..., Any]

_SEAMS = os.path.join(os.path.dirname(__file__), "")


class CudaGraph(Exception):
    """An observer is called while a CUDA graph is captured."""


class Failures:
    """Which observers have failed and are switched `off`, by their module, and who is told. untold: what failed where
    the stack was too deep to tell."""

    def __init__(self) -> None:
        self.off: set[str] = set()
        self.untold: dict[str, Exception] = {}
        self._report: Callable[[str, Exception], None] | None = None

    @contextmanager
    def reported_to(self, report: Callable[[str, Exception], None]) -> Iterator[None]:
        """Within this, `report` is called with each observer that fails, once, and with its error."""
        before = self.off, self._report
        self.off, self._report = set(), report
        try:
            yield
        finally:
            self.tell()
            self.off, self._report = before

    def tell(self) -> None:
        """Report those that could not be reported when they failed."""
        while self.untold and self._report is not None:
            observer, error = self.untold.popitem()
            with suppress(Exception):
                self._report(observer, error)

    def blames(self, observer: str, error: Exception) -> bool:
        """Whether the observer raised `error`, which switches it off; False if the error is the script's, or if nobody
        is told."""
        # What the trainer replaced since its import may have broken the observer, and would break this.
        ours.look(late=True)
        with Aside():
            if self._report is None or _came_by_signal(error):
                return False
            if observer not in self.off:
                self.off.add(observer)
                # Evidence that cannot be delivered shows by its absence.
                with suppress(Exception):
                    self._report(observer, error)
        return True


failures = Failures()


class Original(Aside):
    """The original of a call: whether it has run, and what came of it. Within it, as a context, the recorder is aside,
    but for the original, which runs in all that the trainer is in. `given`: what it gets if nothing calls it."""

    __slots__ = ("__wrapped__", "error", "given", "has_run", "result")

    def __init__(self, original: Function, given: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
        self._functions = self._rest = None
        self._has_ours = False
        self.__wrapped__ = original
        self.given = given
        self.has_run = False
        self.result: Any = None
        self.error: BaseException | None = None

    @passed_over
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.has_run = True
        # What the original returned, such as a generator, may call it when the call has ended.
        was_aside = self._functions is not None
        try:
            if was_aside:
                self.__exit__()
            try:
                self.result = self.__wrapped__(*args, **kwargs)
            finally:
                if was_aside:
                    self.__enter__()
        except BaseException as error:
            self.error = error
            raise
        return self.result

    def instead(self, *args: Any, **kwargs: Any) -> None:
        """From now on the original gets these: what it was given has been used up."""
        self.given = args, kwargs

    def outcome(self) -> Any:
        """What the caller would have got without us."""
        if self.error is not None:
            raise self.error
        return self.result if self.has_run else self.__wrapped__(*self.given[0], **self.given[1])


def guarded(around: Function, original: Function) -> Function:
    """A function that calls `around(original, ...)`. If `around` raises an error of its own, the original runs all the
    same, once, and its result or error is that of the call."""
    observer = around.__module__
    around = passed_over(around)

    @passed_over
    def call(*args: Any, **kwargs: Any) -> Any:
        # Where torch compiles us with the trainer, it leaves out all but this line.
        if is_dynamo_compiling() or observer in failures.off:
            return original(*args, **kwargs)
        once = Original(original, (args, kwargs))
        try:
            with once:
                _see_that_nothing_is_captured()
                return around(once, *args, **kwargs)
        except RecursionError as error:
            if error is once.error:
                raise
            # There is no room for a call.
            failures.off.add(observer)
            failures.untold[observer] = error
        except Exception as error:
            if error is once.error or not failures.blames(observer, error):
                raise
        return once.outcome()

    return call


def harmless(act: Function, observer: str | None = None) -> Function:
    """The same function, which returns None if it raises or its observer has been switched off.

    observer: its module, if that is not where the function is from.
    """
    observer = observer or act.__module__

    def call(*args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling() or observer in failures.off:
            return None
        try:
            _see_that_nothing_is_captured()
            with Aside():
                return act(*args, **kwargs)
        except RecursionError as error:
            failures.off.add(observer)
            failures.untold[observer] = error
        except Exception as error:
            if not failures.blames(observer, error):
                raise
        return None

    return call


def _see_that_nothing_is_captured() -> None:
    # Asking starts CUDA, after which a process cannot be forked.
    if cuda.is_initialized() and cuda.is_current_stream_capturing():
        raise CudaGraph("nothing can be read while a CUDA graph is captured, and what it replays calls no hook")


def _came_by_signal(error: BaseException) -> bool:
    """Whether a handler of the script's for a signal raised it, such as one that ends what takes too long. Python calls
    these wherever it is, and so in what is ours."""
    handlers = (signal.getsignal(number) for number in signal.valid_signals())
    codes = {_code(handler) for handler in handlers if callable(handler)} - {None}
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False


def _code(handler: Any) -> Any:
    while isinstance(handler, partial):
        handler = handler.func
    function = getattr(handler, "__func__", handler)
    return getattr(function, "__code__", None) or getattr(type(handler).__call__, "__code__", None)


@contextmanager
def surrounded(
    inner: Callable[[], AbstractContextManager[Any]], ours: Callable[[], AbstractContextManager[None]], observer: str
) -> Iterator[Any]:
    """A context of the trainer's, `inner()`, with one of ours, `ours()`, which is entered last and left first."""
    with inner() as result:
        context = ours()
        harmless(context.__enter__, observer)()
        try:
            yield result
        finally:
            harmless(context.__exit__, observer)(None, None, None)


def caller(frame: FrameType) -> FrameType | None:
    """The frame that called a replaced function or a hook, from the frame of what is called instead."""
    found = frame.f_back
    while found is not None and found.f_code.co_filename.startswith(_SEAMS):
        found = found.f_back
    return found
