"""Keeps errors of the recorder away from the trainer.

All recorder code that runs within a trainer's call goes through here: wrappers of functions, hooks, and the entry and
exit of contexts. If it raises, the trainer gets the result it would have without the recorder, and the observer that
raised is switched off. So is an observer called during the capture of a CUDA graph, which reading a tensor would break.
Recorder and trainer do not see each other's modes (see `Aside`). Warnings keep the trainer's line: when Python counts
`stacklevel`, it ignores the frames of functions that are `passed_over`.
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
"""Python recognises the frames of its import system, which it skips for warnings, by these words in the file name."""


def passed_over(function: _Passed) -> _Passed:
    """A copy of a Python function or method whose frame Python skips for warnings; other objects unchanged."""
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
    """The code, with a file name for which Python skips its frame."""
    return code.replace(co_filename=code.co_filename + _MARK)


Function: TypeAlias = Callable[..., Any]

_SEAMS = os.path.join(os.path.dirname(__file__), "")


class CudaGraph(Exception):
    """An observer was called during the capture of a CUDA graph."""


class Failures:
    """The failed observers, by module, which are switched `off`, and the function that reports them. untold: errors
    that could not be reported because the stack was too deep."""

    def __init__(self) -> None:
        self.off: set[str] = set()
        self.untold: dict[str, Exception] = {}
        self._report: Callable[[str, Exception], None] | None = None

    @contextmanager
    def reported_to(self, report: Callable[[str, Exception], None]) -> Iterator[None]:
        """A context in which `report` is called once for each observer that fails, with its error."""
        before = self.off, self._report
        self.off, self._report = set(), report
        try:
            yield
        finally:
            self.tell()
            self.off, self._report = before

    def tell(self) -> None:
        """Report the failures that could not be reported earlier."""
        while self.untold and self._report is not None:
            observer, error = self.untold.popitem()
            with suppress(Exception):
                self._report(observer, error)

    def blames(self, observer: str, error: Exception) -> bool:
        """Whether the observer raised `error`, which switches it off; False if the error is the script's, or without a
        `report`."""
        # A replacement by the trainer since its import may have broken the observer, and would break this function.
        ours.look(late=True)
        with Aside():
            if self._report is None or _came_by_signal(error):
                return False
            if observer not in self.off:
                self.off.add(observer)
                # Without this report, the missing evidence shows the failure.
                with suppress(Exception):
                    self._report(observer, error)
        return True


failures = Failures()


class Original(Aside):
    """The original function of a call, whether it has run, and its outcome. As a context, it sets the trainer's modes
    aside, except while the original runs. `given`: the arguments of the original if nothing calls it."""

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
        # The result, such as a generator, may call this after the call has ended.
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
        """Replace the arguments `given`, because the recorder has consumed them."""
        self.given = args, kwargs

    def outcome(self) -> Any:
        """The result or error that the caller would get without the recorder."""
        if self.error is not None:
            raise self.error
        return self.result if self.has_run else self.__wrapped__(*self.given[0], **self.given[1])


def guarded(around: Function, original: Function) -> Function:
    """A function that calls `around(original, ...)`. If `around` itself raises, the original still runs once, and its
    result or error is that of the call."""
    observer = around.__module__
    around = passed_over(around)

    @passed_over
    def call(*args: Any, **kwargs: Any) -> Any:
        # When torch compiles this function with the trainer, only this line remains.
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
            # The stack has no room for a call.
            failures.off.add(observer)
            failures.untold[observer] = error
        except Exception as error:
            if error is once.error or not failures.blames(observer, error):
                raise
        return once.outcome()

    return call


def harmless(act: Function, observer: str | None = None) -> Function:
    """`act`, except that it returns None if it raises or its observer is switched off.

    observer: the observer's module, by default the function's.
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
    # The second call would start CUDA, and then the process could no longer fork.
    if cuda.is_initialized() and cuda.is_current_stream_capturing():
        raise CudaGraph("tensors cannot be read during the capture of a CUDA graph, and its replays call no hooks")


def _came_by_signal(error: BaseException) -> bool:
    """Whether a signal handler of the script raised it, such as one for a timeout. Python may call these handlers while
    recorder code runs."""
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
    """The trainer's context `inner()` with the recorder's `ours()` inside, which is entered last and left first."""
    with inner() as result:
        context = ours()
        harmless(context.__enter__, observer)()
        try:
            yield result
        finally:
            harmless(context.__exit__, observer)(None, None, None)


def caller(frame: FrameType) -> FrameType | None:
    """The frame that called a replaced function or a hook, seen from a frame of the replacement."""
    found = frame.f_back
    while found is not None and found.f_code.co_filename.startswith(_SEAMS):
        found = found.f_back
    return found
