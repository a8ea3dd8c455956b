"""Undoes changes of Python by a trainer's import in the harness's processes, and repeats them in ranks.

Libraries replace functions of the standard library (gevent, mocks, guards against sockets) and install signal handlers.
Ranks must have these replacements; the processes that start and watch ranks must not.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import inspect
import json
import linecache
import os
import pathlib
import posixpath
import re
import select
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_OWNERS: tuple[Any, ...] = (
    *(builtins, json, json.decoder, json.encoder, os, posixpath, select, selectors, signal, socket, socket.socket),
    *(subprocess, tempfile, threading, time, traceback),
    *(contextlib, functools, inspect, linecache, pathlib, pathlib.Path, pathlib.PurePath, re, shutil, sys),
)
#: A handler of the first hides the end of children; with the second, writing to a closed connection ends the process.
_SIGNALS = (signal.SIGCHLD, signal.SIGPIPE)
_set_handler, _get_handler = signal.signal, signal.getsignal

_replaced: list[tuple[Any, str, Any]] = []
_handlers: dict[int, Any] = {}


@contextmanager
def undone() -> Iterator[None]:
    """Undo replacements in the block. Names that it deletes stay deleted, and data of `sys` stays changed."""
    before = [
        (owner, name, value)
        for owner in _OWNERS
        for name, value in [*vars(owner).items()]
        if owner is not sys or callable(value)
    ]
    handlers = {number: _get_handler(number) for number in _SIGNALS}
    try:
        yield
    finally:
        for owner, name, value in before:
            now = vars(owner).get(name, value)
            if now is not value:
                _replaced.append((owner, name, now))
                setattr(owner, name, value)
        for number, handler in handlers.items():
            if _get_handler(number) != handler:
                _handlers[number] = _get_handler(number)
                _set_handler(number, handler)


def do_again() -> None:
    """Repeat the undone replacements, in a process that trains."""
    for owner, name, value in _replaced:
        setattr(owner, name, value)
    for number, handler in _handlers.items():
        # None means that it was not set from Python.
        if handler is not None:
            _set_handler(number, handler)
