"""Generates trace-schema.json, and the tables of events in TRACE.md, from the classes of events.

``python -m tools.trace_schema`` updates both.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_origin

from conformance.trace import file
from conformance.trace.events import KINDS, Event, Number, Site, hints, is_required

SCHEMA = Path(file.__file__).with_name("trace-schema.json")
WORDS = Path(file.__file__).with_name("TRACE.md")

Json: TypeAlias = dict[str, Any]

_SITE: Json = {
    "type": "array",
    "prefixItems": [{"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "string"}],
    "items": False,
    "minItems": 3,
}
_NUMBER: Json = {"anyOf": [{"type": "number"}, {"enum": ["nan", "inf", "-inf"]}]}
_COUNT: Json = {"type": "integer", "minimum": 0}
_PLAIN: dict[Any, Json] = {
    NoneType: {"type": "null"},
    bool: {"type": "boolean"},
    int: _COUNT,
    float: {"type": "number"},
    str: {"type": "string"},
    dict: {"type": "object"},
    Number: {"$ref": "#/$defs/number"},
    Site: {"$ref": "#/$defs/site"},
}
_PLAN = ("case backend world_size accumulation micro_batch_size steps epochs precision loss device model samples "
         "orders optimizer schedule clip scaler")  # fmt: skip


def schema() -> Json:
    """A JSON Schema for one line of a trace."""
    kinds = {
        name: {
            "$ref": "#/$defs/event",
            "unevaluatedProperties": False,
            "required": [field for field in _own(kind) if is_required(kind, field)],
            "properties": {"event": {"const": name}, **_properties(kind)},
        }
        for name, kind in KINDS.items()
    }
    event = {
        "type": "object",
        "required": ["event", *(field for field in _own(Event) if is_required(Event, field))],
        "properties": {"event": {"type": "string"}, **_properties(Event)},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"One line of a trace of trainer-conformance, schema version {file.SCHEMA_VERSION}",
        "oneOf": [{"$ref": f"#/$defs/{name}"} for name in ("trace", *KINDS)],
        "$defs": {"number": _NUMBER, "site": _SITE, "trace": _header(), "event": event, **kinds},
    }


def schema_text() -> str:
    """The text of trace-schema.json: one definition per line."""
    whole = schema()
    definitions = ",\n".join(f"    {json.dumps(name)}: {json.dumps(one)}" for name, one in whole.pop("$defs").items())
    rest = ",\n".join(f"  {json.dumps(name)}: {json.dumps(one)}" for name, one in whole.items())
    return f'{{\n{rest},\n  "$defs": {{\n{definitions}\n  }}\n}}\n'


def words(text: str) -> str:
    """TRACE.md with its tables of events updated."""
    for heading, table in (("Every event", _head()), ("Kinds", _kinds())):
        start = text.index(f"\n## {heading}\n")
        end = text.index("\n## ", start + 1)
        text = f"{text[:start]}\n## {heading}\n\n{table}\n{text[end:]}"
    return text


def _header() -> Json:
    properties: Json = {
        "kind": {"const": "trace"},
        "schema_version": {"const": file.SCHEMA_VERSION},
        "case": {"type": "string"},
        "rank": _COUNT,
        "events": _COUNT,
        "versions": {"type": "object", "additionalProperties": {"type": "string"}},
        "plan": {"type": "object", "required": _PLAN.split()},
    }
    return {
        "type": "object",
        "additionalProperties": False,
        "required": list(properties),
        "properties": properties,
    }


def _own(kind: type[Event]) -> dict[str, Any]:
    """The fields that a kind has in addition to those of every event, with their types; all for `Event`."""
    known = {} if kind is Event else hints(Event)
    return {name: hint for name, hint in hints(kind).items() if name not in known}


def _properties(kind: type[Event]) -> Json:
    """The schemas of a kind's fields. A field that may be omitted is never null."""
    return {name: _schema_of(hint, nullable=is_required(kind, name)) for name, hint in _own(kind).items()}


def _schema_of(hint: Any, nullable: bool = True) -> Json:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return arguments[2] if len(arguments) > 2 else _schema_of(arguments[0], nullable)
    if hint in _PLAIN:
        return _PLAIN[hint]
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is Sequence:
        return {"type": "array", "items": _schema_of(arguments[0])}
    # A union is flat: the union of a number and null has lost the number's name.
    rest = [one for one in arguments if one is not NoneType]
    parts = [_PLAIN[Number]] if set(get_args(Number)) <= set(rest) else [_schema_of(one) for one in rest]
    parts += [_PLAIN[NoneType]] if nullable and NoneType in arguments else []
    return parts[0] if len(parts) == 1 else {"anyOf": parts}


def _head() -> str:
    lines = ["| Field | Type | Meaning |", "| --- | --- | --- |"]
    lines.append("| `event` | string | its kind, from the table below |")
    lines += (f"| {_name(Event, name)} | {_type(hint)} | {_doc(hint)} |" for name, hint in hints(Event).items())
    return "\n".join(lines)


def _kinds() -> str:
    lines = ["| Kind | Noted | Fields |", "| --- | --- | --- |"]
    lines += (f"| `{name}` | {kind.noted} | {'; '.join(_cells(kind))} |" for name, kind in KINDS.items())
    return "\n".join(lines).replace("|  |", "| |")


def _cells(kind: type[Event]) -> Iterator[str]:
    for name, hint in _own(kind).items():
        doc, values = _doc(hint), ", ".join(_values(hint))
        meaning = f"{values} ({doc})" if values and doc else values or doc
        yield _name(kind, name) + (f": {meaning}" if meaning else "")


def _name(kind: type[Event], field: str) -> str:
    return f"`{field}`" if is_required(kind, field) else f"`{field}` *"


def _doc(hint: Any) -> str:
    return str(get_args(hint)[1]) if get_origin(hint) is Annotated else ""


def _values(hint: Any) -> list[str]:
    """The values that a field may have, if they are countable."""
    plain = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    options = [plain] if get_origin(plain) is Literal else list(get_args(plain))
    literals = [value for one in options if get_origin(one) is Literal for value in get_args(one)]
    nullable = NoneType in options
    if not literals or "nan" in literals:
        return []
    return [*(f"`{value}`" for value in literals), *(["null"] if nullable else [])]


def _type(hint: Any) -> str:
    names = {int: "integer", float: "number", str: "string", NoneType: "null", Site: "[file, line, function]"}
    plain = get_args(hint)[0]
    return names.get(plain) or " or ".join(names[one] for one in get_args(plain))


if __name__ == "__main__":
    SCHEMA.write_text(schema_text(), encoding="utf-8")
    WORDS.write_text(words(WORDS.read_text(encoding="utf-8")), encoding="utf-8")
