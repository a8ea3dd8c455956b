"""Generates SCHEMA.md and schema.json from the records, and a schema for each document that `--format json` prints.

``python -m tools.results_schema`` writes all of them.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from conformance.cli import outputs
from conformance.results import result_lines
from conformance.results.plain import NON_FINITE, TOO_LARGE, in_words

WORDS = Path(result_lines.__file__).with_name("SCHEMA.md")
SCHEMA = Path(result_lines.__file__).with_name("schema.json")
OUTPUTS = Path(outputs.__file__).with_name("schemas")
NUMBER: dict[str, Any] = {"anyOf": [{"type": "number"}, {"enum": list(NON_FINITE)}]}
INTRODUCTION = f"""# The results file, schema version {result_lines.SCHEMA_VERSION}

Generated from `result_lines.py` by `python -m tools.results_schema`: edit it there.

A run writes one file in [JSON Lines](https://jsonlines.org): one JSON object on each line, in pure ASCII. The
terminal summary and the HTML report are rendered only from it; `conformance report results.jsonl` renders them again.
[`schema.json`](schema.json) is the same schema for machines: a JSON Schema for one line.

The lines are: one header, one for each case in the order in which cases finished, at most one of mutants, one footer.
Each is flushed when written. If the footer is missing, or the last line is incomplete, the run was cut off: the other
lines are valid, but readers must report that cases are missing.

Rules for every line:

- `kind` is the kind of the line: `header`, `case`, `mutants` or `footer`.
- A field marked * is always present. Any other is omitted if it has its default: null, false, 0, an empty list or
  object.
- There are no other fields. A new field, or a new meaning of one, means a new schema version.
- An *integer* is from 0 to 2^53 - 1.
- A *number* is a JSON number, or one of the strings `"nan"`, `"inf"`, `"-inf"`, for which JSON has no numbers.
- A *vector* has one number for each parameter, in the order of the case's `parameters`; an entry is null if the
  trainer had no value, such as an unset gradient.
- Steps, windows and ranks count from 0. A *window* is an accumulation window; a *step* is an optimizer step that was
  taken. Their numbers differ after a window whose step the gradient scaler skipped.
"""
_SCALARS = {str: "string", bool: "boolean", int: "integer", NoneType: "null"}


def classes() -> dict[str, Any]:
    """All records, in the order of their definitions."""
    return {name: cls for name, cls in vars(result_lines).items() if dataclasses.is_dataclass(cls)}


def _description(cls: Any) -> str:
    return " ".join((inspect.getdoc(cls) or "").split())


def is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is field.default_factory is dataclasses.MISSING


def in_markdown() -> str:
    """The text of SCHEMA.md."""
    return INTRODUCTION + "".join(_section(name, cls) for name, cls in classes().items())


def _section(name: str, cls: Any) -> str:
    kinds = [kind for kind, line in result_lines.KINDS.items() if line is cls]
    hints, annotated = get_type_hints(cls), get_type_hints(cls, include_extras=True)
    text = f"\n## {name}\n\n" + (f"The line of kind `{kinds[0]}`. " if kinds else "")
    text += f"{_description(cls)}\n\n| Field | Type | Meaning |\n| --- | --- | --- |\n"
    if cls is result_lines.Header:
        text += f"| `schema` * | {result_lines.SCHEMA_VERSION} | the version of this schema |\n"
    for field in dataclasses.fields(cls):
        star = " *" if is_required(field) else ""
        kind = in_words(hints[field.name]).replace(in_words(result_lines.Vector), "vector")
        kind = "one of the twelve" if hints[field.name] == result_lines.Verdict else kind
        meaning = annotated[field.name].__metadata__[0].replace("|", "\\|")
        text += f"| `{field.name}`{star} | {kind} | {meaning} |\n"
    return text


def in_json() -> str:
    """The text of schema.json."""
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"One line of a results file of trainer-conformance, schema version {result_lines.SCHEMA_VERSION}",
        "oneOf": [_schema(line) for line in result_lines.KINDS.values()],
        "$defs": {"number": NUMBER} | {name: _object(cls, _fixed(cls)) for name, cls in classes().items()},
    }
    return json.dumps(document, indent=1) + "\n"


def of_output(kind: str) -> str:
    """The text of the schema of a document that `--format json` prints."""
    fixed = {"kind": {"const": kind}, "schema": {"const": outputs.SCHEMA_VERSION}, "version": {"type": "string"}}
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"What conformance {kind} --format json prints, schema version {outputs.SCHEMA_VERSION}",
        **_object(outputs.KINDS[kind], fixed, described=True),
        "$defs": {cls.__name__: _object(cls, {}, described=True) for cls in _inside(outputs.KINDS[kind])},
    }
    return json.dumps(document, indent=1) + "\n"


def _inside(cls: Any) -> Iterator[Any]:
    """The dataclasses of its fields, and of theirs."""
    for hint in get_type_hints(cls).values():
        for part in filter(dataclasses.is_dataclass, get_args(hint)):
            yield part
            yield from _inside(part)


def _fixed(cls: Any) -> dict[str, Any]:
    kinds = [kind for kind, line in result_lines.KINDS.items() if line is cls]
    version = {"schema": {"const": result_lines.SCHEMA_VERSION}} if cls is result_lines.Header else {}
    return ({"kind": {"const": kinds[0]}} if kinds else {}) | version


def _object(cls: Any, fixed: dict[str, Any], *, described: bool = False) -> dict[str, Any]:
    """described: each field has its description."""
    hints = get_type_hints(cls, include_extras=described)
    required = [field.name for field in dataclasses.fields(cls) if is_required(field)]
    return {
        "description": _description(cls),
        "type": "object",
        "additionalProperties": False,
        "required": [*fixed, *required],
        "properties": fixed | {field.name: _schema(hints[field.name]) for field in dataclasses.fields(cls)},
    }


def _schema(hint: Any) -> dict[str, Any]:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return {"description": arguments[1], **_schema(arguments[0])}
    if origin in (Union, UnionType):
        return {"anyOf": [_schema(argument) for argument in arguments]}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is tuple:
        return {"type": "array", "items": _schema(arguments[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema(arguments[1])}
    if hint is Any:
        return {}
    if hint is int:
        return {"type": "integer", "minimum": 0, "exclusiveMaximum": TOO_LARGE}
    if hint in _SCALARS:
        return {"type": _SCALARS[hint]}
    return {"$ref": "#/$defs/" + ("number" if hint is float else hint.__name__)}


if __name__ == "__main__":
    WORDS.write_text(in_markdown(), encoding="utf-8")
    SCHEMA.write_text(in_json(), encoding="utf-8")
    for kind in outputs.KINDS:
        OUTPUTS.joinpath(f"{kind}.json").write_text(of_output(kind), encoding="utf-8")
