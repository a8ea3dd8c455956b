"""Plain JSON values read into frozen dataclasses, field by field, with every field checked.

The dataclasses of `records` are the one description of a results file; this module walks their type hints. A
field that is missing, unknown or of another type is a `ShapeError` that says where it is: nothing is dropped
or guessed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")

NON_FINITE = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


class ShapeError(ValueError):
    """A JSON value does not have the shape that the schema gives it. `str()` is one line: where, and what is
    wrong.
    """


def read_shape(cls: type[T], value: object, where: str) -> T:
    """Builds the dataclass `cls` from the JSON object `value`.

    `where` starts the message of a `ShapeError`, such as "line 7". A field with a default may be absent.
    Numbers may be the words "nan", "inf" and "-inf", because JSON has no other way to say them.
    """
    return cast(T, _dataclass(cls, value, where))


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def _dataclass(cls: Any, value: object, where: str) -> object:
    if not isinstance(value, dict):
        raise ShapeError(f"{where} is {_name(value)}, but should be an object")
    fields = {field.name: field for field in dataclasses.fields(cls)}
    unknown = [str(key) for key in value if key not in fields]
    if unknown:
        raise ShapeError(f"{where} has the unknown field {unknown[0]!r}")
    hints, found = _hints(cls), {}
    for name, field in fields.items():
        if name in value:
            found[name] = _convert(hints[name], value[name], f"{where}, field {name!r}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ShapeError(f"{where} lacks the field {name!r}")
    return cls(**found)


def _convert(hint: Any, value: object, where: str) -> object:
    if hint is object:
        return value
    if dataclasses.is_dataclass(hint):
        return _dataclass(hint, value, where)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        inner = [argument for argument in arguments if argument is not NoneType]
        return None if value is None else _convert(inner[0], value, where)
    if origin is Literal:
        return _literal(arguments, value, where)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ShapeError(f"{where} is {_name(value)}, but should be a list")
        return tuple(_convert(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is dict:
        if not isinstance(value, dict):
            raise ShapeError(f"{where} is {_name(value)}, but should be an object")
        return {str(key): _convert(arguments[1], item, f"{where}[{key!r}]") for key, item in value.items()}
    return _SCALARS[hint](value, where)


def _literal(choices: tuple[object, ...], value: object, where: str) -> object:
    if value not in choices:
        raise ShapeError(f"{where} is {value!r}, but should be one of {', '.join(map(str, choices))}")
    return value


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise ShapeError(f"{where} is {_name(value)}, but should be a string")
    return value


def _truth(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise ShapeError(f"{where} is {_name(value)}, but should be true or false")
    return value


def _whole(value: object, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ShapeError(f"{where} is {_name(value)}, but should be a whole number")
    return value


def _number(value: object, where: str) -> float:
    if isinstance(value, str) and value in NON_FINITE:
        return NON_FINITE[value]
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ShapeError(f'{where} is {_name(value)}, but should be a number, "nan", "inf" or "-inf"')
    return float(value)


_SCALARS: dict[type, Callable[[object, str], object]] = {
    str: _text,
    bool: _truth,
    int: _whole,
    float: _number,
}


def _name(value: object) -> str:
    """How JSON calls the kind of `value`."""
    if value is None:
        return "null"
    kinds = {bool: "true or false", str: "a string", int: "a number", float: "a number", dict: "an object"}
    return kinds.get(type(value), "a list")
