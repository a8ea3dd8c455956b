"""Bundles the statements that one function needs from several sources into one text without imports of this package."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import conformance
from conformance.repro.sources import PACKAGE, CannotCopy, Imported, Source, attributes_in, names_in

HERE = Path(conformance.__file__).parent
PARTS = f"{PACKAGE}.repro.parts"
MODELS = f"{PACKAGE}.adapter.models"
_MARK = frozenset({"trainer"})
#: The names that a trainer imports from this package, and where a script gets them.
_PUBLIC = {"Task": f"{PARTS}.stand_in", "Unsupported": f"{PARTS}.stand_in", "Batch": f"{PARTS}.samples"}
_COPIED = (f"{PACKAGE}.trainers.", f"{PACKAGE}.frameworks.", f"{PARTS}.", MODELS)

#: Values that may be long, and say little.
_DATA = frozenset({"SAMPLES", "WINDOWS", "START", "USED", "ORDERS", "TURNS"})
_DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
#: The parts that come after the trainer, in this order.
_AFTER_TRAINER = ("ranks", "conclusions")


@dataclass
class Given:
    """A definition written for a script, and the names of this package's modules that it uses."""

    text: str
    needs: tuple[tuple[str, str], ...] = ()


@dataclass
class Bundle:
    """Collects the statements of a script.

    Attributes:
        trainer: the trainer's file. package: the package that its relative imports start from.
        given: definitions that are the script's own, by the names of `parts.values`.
        meant: the definition to take, by a name in the parts.
        written: replacements of names in the parts. absent: replacements of expressions in them.
        variants: the classes of `parts.stand_in` whose methods replace the task's of the same names.
        attributes: the task's attributes, as text.
    """

    trainer: Source
    package: str
    given: Mapping[str, Given]
    meant: Mapping[str, str]
    written: Mapping[str, str]
    absent: Mapping[str, str]
    variants: tuple[str, ...]
    attributes: Mapping[str, str]
    _taken: dict[Source, set[str]] = field(default_factory=dict)
    _imports: dict[str, list[Imported]] = field(default_factory=dict)
    _givens: dict[str, Given] = field(default_factory=dict)
    _known: dict[str, Source] = field(default_factory=dict)
    _methods: dict[str, ast.stmt] = field(default_factory=dict)
    _used: set[str] = field(default_factory=set)

    def text(self, function: str, main: str) -> str:
        """The whole script without its docstring. ``function``: the trainer's; ``main``: of the parts.

        Raises CannotCopy.
        """
        self._take(self.trainer, function)
        self._take(self._source(f"{PARTS}.conclusions"), main)
        self._complete_task()
        order = [self._known.get(f"{PARTS}.samples"), "task", self._known.get(MODELS), "given", *self._trainers()]
        order += [self._known.get(f"{PARTS}.{name}") for name in _AFTER_TRAINER]
        values = {name: given.text for name, given in self._in_case_order() if not given.needs}
        blocks = ["\n".join(one for name, one in values.items() if name not in _DATA)]
        for one in order:
            if one == "task":
                blocks += self._task()
            elif one == "given":
                blocks += [given.text for _, given in self._in_case_order() if given.needs]
            elif isinstance(one, Source):
                first = len(blocks)
                blocks += self._statements(one)
                if one in self._trainers() and blocks[first:]:
                    blocks[first] = f"# The trainer, as it is in {Path(one.name).name}.\n\n\n{blocks[first]}"
        # A reader wants to see the trainer first.
        blocks.append("\n".join(one for name, one in values.items() if name in _DATA))
        blocks.append(f'if __name__ == "__main__":\n    {main}()')
        if any("SimpleNamespace(" in block for block in blocks):
            self._imports["SimpleNamespace"] = [Imported("types", "SimpleNamespace")]
        blocks.insert(0, "\n".join(self._import_lines()))
        late = "from __future__ import annotations\n\n" if self.trainer.is_annotated_late else ""
        return late + "\n\n\n".join(filter(None, blocks)) + "\n"

    @property
    def used(self) -> set[str]:
        """The attributes that the trainer's statements use."""
        found = set[str]()
        for source in self._trainers():
            for node in self._nodes(source):
                found |= attributes_in(node)
        return found

    def uses(self, function: str) -> set[str]:
        """The attributes that the trainer uses, and "with step" for an attribute used as a context; needs nothing else
        about the script. Raises CannotCopy."""
        self._take(self.trainer, function)
        nodes = [inner for source in self._trainers() for node in self._nodes(source) for inner in ast.walk(node)]
        entered = [item.context_expr for node in nodes if isinstance(node, ast.With) for item in node.items]
        calls = [one.func for one in entered if isinstance(one, ast.Call)]
        return self.used | {f"with {one.attr}" for one in calls if isinstance(one, ast.Attribute)}

    # Selection of the needed statements.

    def _take(self, source: Source, name: str) -> None:
        name = self._meant(source, name)
        taken = self._taken.setdefault(source, set())
        if name in taken:
            return
        if source.name == f"{PARTS}.values":
            self._take_given(name)
        elif name in source.definitions and (name, source.name) != ("Task", f"{PARTS}.stand_in"):
            taken.add(name)
            self._take_mentioned(source, source.definitions[name])
        elif name in source.imports:
            for imported in source.imports[name]:
                self._take_import(source, name, imported)
        if source not in (*self._parts(),) and not taken & {"*"}:
            taken.add("*")
            for node in source.others:
                self._take_mentioned(source, node)

    def _take_mentioned(self, source: Source, node: ast.AST) -> None:
        absent = self.absent if source in self._parts() else ()
        for name in dict.fromkeys(names_in(node, _MARK, absent)):
            if Imported(PACKAGE, None) in source.imports.get(name, ()):
                for public in attributes_in(node) & _PUBLIC.keys():
                    self._take(self._source(_PUBLIC[public]), public)
            elif name in source.definitions or name in source.imports:
                self._take(source, name)

    def _take_import(self, source: Source, name: str, imported: Imported) -> None:
        module = imported.module
        if module.startswith("."):
            if not self.package:
                raise CannotCopy(
                    f"{source.name} has `from {module} import {imported.attribute}`, but is not in a package: name the "
                    "trainer as package.module:function"
                )
            module = importlib.util.resolve_name(module, self.package)
            imported = Imported(module, imported.attribute)
        if module == PACKAGE and imported.attribute == "trainer":
            return
        if module == PACKAGE and imported.attribute == name and name in _PUBLIC:
            self._take(self._source(_PUBLIC[name]), name)
        elif module.startswith(_COPIED) and imported.attribute is not None:
            if imported.attribute != name:
                raise CannotCopy(f"{source.name} imports {imported.attribute} of {module} under another name")
            self._take(self._source(module), name)
        elif module == PACKAGE or module.startswith(f"{PACKAGE}."):
            what = f"{imported.attribute} of {module}" if imported.attribute else module
            raise CannotCopy(f"{source.name} uses {what}, which is not available in a script without {PACKAGE}")
        else:
            known = self._imports.setdefault(name, [])
            if any((one.attribute, imported.attribute) != (None, None) and one != imported for one in known):
                raise CannotCopy(f"`{name}` is imported from {module} and from {known[0].module}")
            known += [imported] if imported not in known else []

    def _take_given(self, name: str) -> None:
        if name in self.given and name not in self._givens:
            self._givens[name] = self.given[name]
            for module, needed in self.given[name].needs:
                self._take(self._source(module), needed)

    def _complete_task(self) -> None:
        """Takes the task's methods that are used, directly or by each other."""
        source = self._source(f"{PARTS}.stand_in")
        own = {"__init__", *self.used, "weights", "model"}
        classes = [source.definitions[name] for name in ("Task", *self.variants)]
        known = {
            node.name: node
            for one in classes
            if isinstance(one, ast.ClassDef)
            for node in one.body
            if isinstance(node, ast.FunctionDef)
        }
        while new := [name for name in known if name in own and name not in self._methods]:
            for name in new:
                self._methods[name] = known[name]
                own |= attributes_in(known[name])
                self._take_mentioned(source, known[name])
        self._used = own | {name for one in self._parts() for node in self._nodes(one) for name in attributes_in(node)}

    # Their text.

    def _task(self) -> Iterator[str]:
        lines = [f"    {name} = {value}" for name, value in self.attributes.items() if name in self._used]
        source = self._source(f"{PARTS}.stand_in")
        methods = [source.copied(node, self._substitutes(source)) for node in self._methods.values()]
        yield "\n\n".join(
            [
                'class Task:\n    """The trainer\'s input: the settings of the case, and the data of a rank."""',
                *(["\n".join(lines)] if lines else []),
                *methods,
            ]
        )
        yield from self._statements(source)

    def _statements(self, source: Source) -> Iterator[str]:
        """Yields each definition alone, and the statements between two of them together."""
        for is_definition, nodes in groupby(self._nodes(source), lambda node: isinstance(node, _DEFINITIONS)):
            texts = [source.copied(node, self._substitutes(source), _MARK) for node in nodes]
            yield from texts if is_definition else ["\n".join(texts)]

    def _nodes(self, source: Source) -> list[ast.stmt]:
        """The needed statements of a source, in its order."""
        taken = self._taken.get(source, set())
        nodes = {id(source.definitions[name]) for name in taken if name in source.definitions}
        nodes |= {id(node) for node in source.others if "*" in taken}
        return [node for node in source.tree.body if id(node) in nodes]

    def _in_case_order(self) -> list[tuple[str, Given]]:
        return [(name, self._givens[name]) for name in self.given if name in self._givens]

    def _import_lines(self) -> Iterator[str]:
        """Yields the standard library's imports first; of each kind, whole modules first."""
        lines, members = list[tuple[str, bool, str]](), dict[str, list[str]]()
        for name, imported in self._imports.items():
            for one in imported:
                if one.attribute is not None:
                    members.setdefault(one.module, []).append(_bound(one.attribute, name))
                else:
                    is_root = name == one.module.partition(".")[0]
                    lines.append((one.module, False, f"import {one.module if is_root else _bound(one.module, name)}"))
        lines += [(module, True, f"from {module} import {', '.join(sorted(of))}") for module, of in members.items()]
        for standard in (True, False):
            own = [one for one in lines if (one[0].partition(".")[0] in sys.stdlib_module_names) is standard]
            yield from (line for _, _, line in sorted(own, key=lambda one: (one[1], one[0])))
            yield from [""] if standard else []

    # Names.

    def _source(self, module: str) -> Source:
        if module not in self._known:
            path = HERE.joinpath(*module.split(".")[1:]).with_suffix(".py")
            self._known[module] = Source(module, Source.of(path).text)
        return self._known[module]

    def _parts(self) -> list[Source]:
        return [one for name, one in self._known.items() if name.startswith(f"{PARTS}.") or name == MODELS]

    def _trainers(self) -> list[Source]:
        parts = self._parts()
        # Imported sources come first.
        return [one for one in reversed(self._taken) if one not in parts]

    def _meant(self, source: Source, name: str) -> str:
        other = self.meant.get(name, name)
        return other if source in self._parts() and other in source.definitions else name

    def _substitutes(self, source: Source) -> Mapping[str, str]:
        if source in self._parts():
            return {**self.absent, **self.written}
        return {f"{PACKAGE}.{name}": name for name in _PUBLIC}


def _bound(what: str, name: str) -> str:
    """The import of ``what`` under ``name``."""
    return what if what == name else f"{what} as {name}"


def part_names() -> set[str]:
    """All names that the parts define."""
    files = (HERE / "repro" / "parts").glob("*.py")
    return {name for file in files for name in Source.of(file).definitions}
