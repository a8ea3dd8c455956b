"""Imports a trainer's module and turns every failure into one line; reads its declaration without an import."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import hashlib
import importlib
import importlib.util
import os
import pkgutil
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from conformance.adapter.declaration import Declaration, did_you_mean


class TrainerError(Exception):
    """An unusable target; the message is one line that says what is wrong and what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class MissingRequirement(TrainerError):
    """A trainer that cannot be imported because a module listed under its `requires` is missing.

    `declaration` was read from the source; `module` is the missing module.
    """

    def __init__(self, message: str, declaration: Declaration, module: str) -> None:
        super().__init__(message)
        self.declaration = declaration
        self.module = module


def from_path(place: str) -> ModuleType:
    """Imports a file. Its folder comes first on `sys.path`, as for a script, so siblings import.

    A file in a package is imported as a module of that package, so relative imports work. Any other file gets a module
    name that hides no installed module.
    """
    path = Path(place)
    if path.is_dir():
        raise a_folder(place)
    if not path.is_file():
        raise TrainerError(f"{place}: no such file{_similar_file(path)}")
    if path.suffix != ".py":
        raise TrainerError(f"{place}: not a Python file: its name does not end in .py")
    path = path.resolve()
    root = package_root(path)
    if root is not None:
        put_first(root)
        name = ".".join(path.relative_to(root).with_suffix("").parts)
        spec = _find_spec(name)
        if spec is not None and spec.origin is not None and Path(spec.origin).resolve() == path:
            return named(name, place, path)
    put_first(path.parent)
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:8]
    # A file name may contain bytes that are not UTF-8; a module name is printed, pickled and sent.
    stem = os.fsencode(path.stem).decode(errors="replace")
    return _import_file(f"{stem}_{digest}", place, path)


def from_name(name: str, suggestions: Sequence[str] = ()) -> ModuleType:
    """Imports a module by its dotted name; the current folder is searched first, as by `python -m`."""
    if not all(part.isidentifier() for part in name.split(".")):
        if os.path.isdir(name):
            raise a_folder(name)
        raise TrainerError(f"{name!r}: neither a Python file nor a module name")
    put_first(Path.cwd())
    parent, _, last = name.rpartition(".")
    if parent:
        package = from_name(parent)
        if not hasattr(package, "__path__"):
            raise TrainerError(f"{name}: {parent} is not a package; for a function in it write {parent}:{last}")
        known = [module.name for module in pkgutil.iter_modules(package.__path__)]
    else:
        known = [module.name for module in pkgutil.iter_modules([os.getcwd()])] + list(suggestions)
    spec = _find_spec(name)
    if spec is None and sys.modules.get(name) is None:
        close = did_you_mean(last, known)
        file = f"; write {last}.py for the file" if not close and Path(f"{last}.py").is_file() else ""
        raise TrainerError(f"{name}: no such module{close}{file}")
    return named(name, name, Path(spec.origin) if spec and spec.origin else None)


def a_folder(place: str) -> TrainerError:
    return TrainerError(f"{place}: this is a folder: name a .py file in it, or package.module:function")


def named(name: str, place: str, path: Path | None) -> ModuleType:
    """Imports the module `name`, which lies at `path`; errors call it `place`."""
    try:
        return importlib.import_module(name)
    except BaseException as error:
        raise _explain(error, place, path) from error


def _import_file(name: str, place: str, path: Path) -> ModuleType:
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TrainerError(f"{place}: Python cannot import this file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        raise _explain(error, place, path) from error
    return module


def _explain(error: BaseException, place: str, path: Path | None) -> TrainerError:
    if isinstance(error, SyntaxError):
        # A binary file has no lines.
        line = f":{error.lineno}" if error.lineno else ""
        return TrainerError(f"{error.filename or place}{line}: {type(error).__name__}: {error.msg}")
    where = _deepest_frame(error, path) or place
    what = f"{where}: {type(error).__name__}: {_message(error)}".rstrip(": ")
    if isinstance(error, ModuleNotFoundError) and error.name and path is not None:
        module = error.name.partition(".")[0]
        declaration = declaration_in(path)
        if declaration is not None and module in {name.partition(".")[0] for name in declaration.requires}:
            requirements = " ".join(declaration.requires)
            return MissingRequirement(f"needs {module}: pip install {requirements}", declaration, module)
        return TrainerError(f"{what}; install it, or fix the import")
    return TrainerError(what)


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as another:
        return f"(its message cannot be shown: {type(another).__name__})"


def _deepest_frame(error: BaseException, path: Path | None) -> str | None:
    """`file:line` of the last call in the user's own file, or else in a file next to it."""
    if path is None:
        return None
    # Python's own machinery has file names such as `<frozen importlib._bootstrap>`.
    called = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    frames = [(Path(frame.filename).resolve(), frame) for frame in called]
    own = [frame for file, frame in frames if file == path]
    beside = [frame for file, frame in frames if path.parent in file.parents]
    chosen = own or beside
    return f"{chosen[-1].filename}:{chosen[-1].lineno}" if chosen else None


def _find_spec(name: str) -> importlib.machinery.ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except (ModuleNotFoundError, ValueError):
        return None


def package_root(path: Path) -> Path | None:
    """The parent folder of the outermost package around `path`, or None if it is in no package."""
    folder = path.parent
    while (folder / "__init__.py").is_file():
        folder = folder.parent
    return None if folder == path.parent else folder


def put_first(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
        importlib.invalidate_caches()


def _similar_file(path: Path) -> str:
    if not path.parent.is_dir():
        return f" (nor a folder {path.parent})"
    close = difflib.get_close_matches(path.name, [file.name for file in path.parent.glob("*.py")], n=1)
    return f"; did you mean {path.with_name(close[0])}?" if close else ""


def parsed(path: Path) -> list[ast.stmt]:
    """The statements of a file; none if it cannot be read as source, such as a compiled module."""
    try:
        # Bytes: the file itself says how it is encoded.
        return ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        # The last two: nested too deeply for the parser.
        return []


def trainers_in(path: Path) -> list[str]:
    """The names of the file's functions under `@trainer`, and of those made as in `a = trainer(...)(f)`."""
    body = parsed(path)
    found: list[str] = []
    while body:
        node = body.pop(0)
        if isinstance(node, ast.FunctionDef) and any(map(_is_trainer, node.decorator_list)):
            found.append(node.name)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _makes_trainer(node.value):
            found += [target.id for target in node.targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.If | ast.Try | ast.With | ast.For):
            body = [*(one for one in ast.iter_child_nodes(node) if isinstance(one, ast.stmt)), *body]
    return found


def is_script(path: Path) -> bool:
    """Whether a file uses torch, but not this package, and decorates no function: importing it may train for hours."""
    # Reading a pipe would wait for its writer.
    body = parsed(path) if path.is_file() else []
    nodes = [node for statement in body for node in ast.walk(statement)]
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    tops = {name.partition(".")[0] for name in names}
    decorated = any(isinstance(node, ast.FunctionDef) and node.decorator_list for node in body)
    return "torch" in tops and "conformance" not in tops and not decorated


def _is_trainer(node: ast.expr) -> bool:
    """Whether the node is `@trainer(...)` or plain `@trainer`."""
    return last_name(node.func if isinstance(node, ast.Call) else node) == "trainer"


def _makes_trainer(node: ast.Call) -> bool:
    """Whether it is `trainer(...)(function)` or `trainer(function)`; plain `trainer(...)` makes a decorator."""
    return bool(node.args) and _is_trainer(node.func)


def declaration_in(path: Path) -> Declaration | None:
    """The file's only declaration, if it consists of literals; otherwise None.

    Its `name` defaults to the file's stem.
    """
    found = []
    for node in parsed(path):
        for decorator in node.decorator_list if isinstance(node, ast.FunctionDef) else []:
            if isinstance(decorator, ast.Call) and last_name(decorator.func) == "trainer":
                found.append(decorator)
    if len(found) != 1:
        return None
    try:
        # A session is a function, not part of the declaration.
        keywords = [keyword for keyword in found[0].keywords if keyword.arg != "session"]
        declares = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in keywords}
        declaration = Declaration.from_dict(declares)
    except ValueError:
        return None
    return dataclasses.replace(declaration, name=declaration.name or path.stem)


def last_name(node: ast.expr) -> str:
    """`c` of `a.b.c`; empty if the node is not a name."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
