"""Starts the recorder in each process of a watched command that imports torch.

Python runs this file at startup because `conformance.watch.watching` puts its folder first on PYTHONPATH. It waits for
the import of torch, maps the ledger, and starts the recorder after the import.
"""

import atexit
import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_OURS = "conformance"


class _AfterTorch:
    """A finder for torch that starts the recorder after the import."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module):
            # Only now: a library may look for the spec without importing torch.
            ledger = None
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                # The watch does not reach a process that has torch but has not mapped the ledger.
                ledger = _mapped()
            execute(module)
            if ledger is not None:
                _start(*ledger)

        spec.loader.exec_module = exec_module
        return spec


def _mapped():
    """Maps the ledger; returns it and its module, loaded by path because our package is not imported yet. None if it
    fails."""
    try:
        with _Imported():
            path = os.path.join(os.path.dirname(_HERE), "ledger.py")
            spec = importlib.util.spec_from_file_location(f"{_OURS}.watch.ledger", path)
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module.Ledger(_FOLDER), module
    except Exception:
        # The watch reports processes that cannot reach its folder.
        return None


def _start(ledger, module):
    try:
        ledger.note_torch()
        with _Imported(module):
            from conformance.watch.recording.start import start

            _at_exit.append(start(_FOLDER, ledger))
    except Exception as error:
        entry = ledger.opened()
        if entry is not None:
            entry.fail(f"{type(error).__name__}: {error}")


def _end():
    for act in _at_exit:
        act()


class _Imported:
    """Context in which our package and its dependencies are imported from the paths of Python's start. Afterwards the
    script can import its own modules of the same names."""

    def __init__(self, ledger=None):
        self._ledger = ledger

    def __enter__(self):
        self._path, self._theirs, self._before = [*sys.path], _taken(), {name.partition(".")[0] for name in sys.modules}
        sys.path[:] = _PATH
        if self._ledger is not None:
            spec = importlib.util.spec_from_file_location(
                _OURS, os.path.join(_PACKAGE, "__init__.py"), submodule_search_locations=[_PACKAGE]
            )
            module = importlib.util.module_from_spec(spec)
            sys.modules[_OURS] = module
            # This module bound its functions before the script could patch them.
            sys.modules[f"{_OURS}.watch.ledger"] = self._ledger
            spec.loader.exec_module(module)

    def __exit__(self, *_):
        sys.path[:] = self._path
        own = [folder for folder in self._path if folder not in _PATH]
        new = {name.partition(".")[0] for name in sys.modules} - self._before
        hidden = {name for name in new if importlib.machinery.PathFinder.find_spec(name, own) is not None}
        if self._theirs or _is_the_scripts():
            hidden.add(_OURS)
        for name in [name for name in sys.modules if name.partition(".")[0] in hidden]:
            del sys.modules[name]
        sys.modules.update(self._theirs)


def _is_the_scripts():
    """Whether the script has a different package of our name."""
    found = importlib.machinery.PathFinder.find_spec(_OURS)
    places = [] if found is None else [*(found.submodule_search_locations or [found.origin])]
    return any(os.path.realpath(place) != os.path.realpath(_PACKAGE) for place in places)


def _taken():
    """Removes all modules of our name, ours or the script's, from `sys.modules` and returns them."""
    names = [name for name in sys.modules if name.partition(".")[0] == _OURS]
    return {name: sys.modules.pop(name) for name in names}


def _run_hidden():
    """Runs the `sitecustomize` that this file hides, and registers it under this name."""
    path = [folder for folder in sys.path if os.path.abspath(folder) != _HERE]
    spec = importlib.machinery.PathFinder.find_spec(__name__, path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules[__name__] = module
        spec.loader.exec_module(module)


# Read at startup, because a script may change its environment and its path.
_FOLDER, _HOME, _PATH = os.environ.get("CONFORMANCE_WATCH"), os.environ.get("CONFORMANCE_WATCH_HOME", ""), [*sys.path]
_PACKAGE = os.path.join(_HOME, _OURS)
_at_exit = []
if _FOLDER:
    # Registered first, so it runs last: the script may train in its exit handlers.
    atexit.register(_end)
    sys.meta_path.insert(0, _AfterTorch())
_run_hidden()
