"""Python runs this file when it starts, in each process of a watched command: its folder is first on PYTHONPATH,
where `conformance.watch.watching` has put it.

It costs nothing until the process imports torch. Then it maps the ledger, and after the import starts the recorder.
"""

import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_OURS = "conformance"


class _AfterTorch:
    """Finds torch as the others do, and starts the recorder once it is imported."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module):
            # Not before: a library may only look whether torch is there.
            ledger = None
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                # A process that has torch and has not mapped the ledger is one that the watch does not reach.
                ledger = _mapped()
            execute(module)
            if ledger is not None:
                _start(*ledger)

        spec.loader.exec_module = exec_module
        return spec


def _mapped():
    """The ledger, and the module that it is of, by its path: our package is not imported yet. None without a ledger."""
    path = os.path.join(os.path.dirname(_HERE), "ledger.py")
    spec = importlib.util.spec_from_file_location(f"{_OURS}.watch.ledger", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    try:
        return module.Ledger(os.environ["CONFORMANCE_WATCH"]), module
    except OSError:
        return (
            None  # The folder is gone, and the watch with it; or it is not seen from here, which the watch finds out.
        )


def _start(ledger, module):
    ledger.note_torch()
    try:
        with _Imported(os.environ["CONFORMANCE_WATCH_HOME"], module):
            from conformance.watch.recording.start import start

            start(os.environ["CONFORMANCE_WATCH"])
    except Exception as error:
        entry = ledger.opened()
        if entry is not None:
            entry.fail(f"{type(error).__name__}: {error}")


class _Imported:
    """Within this, our package can be imported, and only it: the path stays as it was. A package of the script's own
    that has the same name is the script's again afterwards."""

    def __init__(self, home, ledger):
        self._folder, self._ledger = os.path.join(home, _OURS), ledger

    def __enter__(self):
        self._theirs = _taken()
        spec = importlib.util.spec_from_file_location(
            _OURS, os.path.join(self._folder, "__init__.py"), submodule_search_locations=[self._folder]
        )
        module = importlib.util.module_from_spec(spec)
        sys.modules[_OURS] = module
        # The functions that it has bound are those from before the script ran.
        sys.modules[f"{_OURS}.watch.ledger"] = self._ledger
        spec.loader.exec_module(module)

    def __exit__(self, *_):
        if self._theirs or self._is_the_scripts():
            _taken()
            sys.modules.update(self._theirs)

    def _is_the_scripts(self):
        """Whether the script would import another package of this name."""
        found = importlib.machinery.PathFinder.find_spec(_OURS)
        places = [] if found is None else [*(found.submodule_search_locations or [found.origin])]
        return any(os.path.realpath(place) != os.path.realpath(self._folder) for place in places)


def _taken():
    """Our package's modules or those of the script's own of this name, taken out of `sys.modules`."""
    names = [name for name in sys.modules if name.partition(".")[0] == _OURS]
    return {name: sys.modules.pop(name) for name in names}


def _run_hidden():
    """Run the `sitecustomize` that this one hides, which is the module of this name from then on."""
    path = [folder for folder in sys.path if os.path.abspath(folder) != _HERE]
    spec = importlib.machinery.PathFinder.find_spec(__name__, path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules[__name__] = module
        spec.loader.exec_module(module)


if os.environ.get("CONFORMANCE_WATCH"):
    sys.meta_path.insert(0, _AfterTorch())
_run_hidden()
