"""Python runs this file when it starts, in each process of a watched command: its folder is first on PYTHONPATH,
where `conformance.watch.watching` has put it.

It costs nothing until the process imports torch. Then it starts the recorder.
"""

import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


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
            execute(module)
            # Not before: a library may only look whether torch is there.
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                _start()

        spec.loader.exec_module = exec_module
        return spec


def _start():
    try:
        _make_importable(os.environ["CONFORMANCE_WATCH_HOME"])
        from conformance.watch.recording.start import start

        start(os.environ["CONFORMANCE_WATCH"])
    except Exception as error:
        _excuse(f"{type(error).__name__}: {error}")


def _make_importable(home):
    """The package that watches, and only it: the path stays as it was, so the script imports what it always imports."""
    package = os.path.join(home, "conformance")
    spec = importlib.util.spec_from_file_location(
        "conformance", os.path.join(package, "__init__.py"), submodule_search_locations=[package]
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules["conformance"] = module
    spec.loader.exec_module(module)


def _excuse(reason):
    """The judge says that this process was not watched, and why."""
    try:
        with open(os.path.join(os.environ["CONFORMANCE_WATCH"], f"failed.{os.getpid()}"), "w") as file:
            file.write(reason)
    except OSError:
        pass  # The folder is gone: the watch is over.


def _run_hidden():
    """Run the `sitecustomize` that this one hides."""
    for folder in sys.path:
        if folder and os.path.abspath(folder) != _HERE:
            path = os.path.join(folder, "sitecustomize.py")
            if os.path.isfile(path):
                with open(path, "rb") as file:
                    exec(compile(file.read(), path, "exec"), {"__name__": "sitecustomize", "__file__": path})
                return


if os.environ.get("CONFORMANCE_WATCH"):
    sys.meta_path.insert(0, _AfterTorch())
_run_hidden()
