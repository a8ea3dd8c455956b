"""Converts records to plain JSON values and back, strictly: misfits raise an error, and nothing is dropped."""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
from collections.abc import Callable
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, Union, cast, get_args, get_origin

from cattrs import BaseConverter, ClassValidationError, Converter, ForbiddenExtraKeysError, IterableValidationError
from cattrs.cols import homogenous_tuple_structure_factory, mapping_structure_factory
from cattrs.errors import IterableValidationNote
from cattrs.gen import make_dict_structure_fn

T = TypeVar("T")
Scalar: TypeAlias = str | int | float | bool | None
Structure: TypeAlias = Callable[[Any, Any], Any]

#: The first integer that some JSON readers cannot represent exactly.
TOO_LARGE = 2**53
#: JSON has no numbers for these.
NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_IN_WORDS = {str: "string", bool: "boolean", int: "integer", float: "number", Any: "any value"}


class ShapeError(ValueError):
    """A value of the wrong type for its field. `str()` is one line: which field, and what is wrong."""


class _Refused(Exception):
    """`args[0]` has the wrong type."""


def plain(record: Any) -> dict[str, Any]:
    """A record as JSON values, without fields that have their defaults."""
    return cast(dict[str, Any], _converter.unstructure(record))


def record(cls: type[T], value: object) -> T:
    """The record of type `cls` for these JSON values.

    Raises:
        ShapeError: a field is missing, unknown or has the wrong type.
    """
    try:
        return _converter.structure(value, cls)
    except (ClassValidationError, _Refused) as error:
        raise ShapeError(_explained(error, "", cls)) from error


def shortened(value: object) -> str:
    """A JSON value as text, cut if it is long."""
    try:
        found = json.dumps(value)
    except (RecursionError, ValueError):
        return "a value"
    return found if len(found) < 60 else found[:57] + "..."


def in_words(hint: Any) -> str:
    """A type in JSON's terms: "list of numbers or null"."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return in_words(arguments[0])
    if origin in (Union, UnionType):
        return " or ".join("null" if argument is NoneType else in_words(argument) for argument in arguments)
    if origin is Literal:
        *most, last = (f"`{choice}`" for choice in arguments)
        return f"{', '.join(most)} or {last}"
    if origin is tuple:
        return f"list of {in_words(arguments[0])}" + "s" * (arguments[0] in _IN_WORDS)
    if origin is dict:
        return f"object of {in_words(arguments[1])}"
    return _IN_WORDS.get(hint) or cast(str, hint.__name__)


def _explained(error: BaseException, field: str, hint: Any) -> str:
    """The first error in the field, or in a field of it."""
    if isinstance(error, ClassValidationError | IterableValidationError):
        noted, others = error.group_exceptions()
        # A misspelt field is both unknown and missing.
        if others:
            return _explained(others[0], field, hint)
        inner, note = noted[0]
        if isinstance(note, IterableValidationNote):
            return _explained(inner, f"{field}[{note.index!r}]", note.type)
        return _explained(inner, f"{field}.{note.name}" if field else note.name, note.type)
    if isinstance(error, KeyError):
        return f"the field {field} is missing"
    where = f"the field {field}" if field else "the line"
    if isinstance(error, ForbiddenExtraKeysError):
        name = min(error.extra_fields)[:60]
        close = difflib.get_close_matches(name, [known.name for known in dataclasses.fields(error.cl)], n=1)
        return f"{where} has an unknown field {name}" + (f"; did you mean {close[0]}?" if close else "")
    bounds = f" from 0 to {TOO_LARGE - 1}" if hint is int else ""
    return f"{where} is {shortened(error.args[0])}, expected {in_words(hint)}{bounds}"


def _make() -> Converter:
    converter = Converter(omit_if_default=True, forbid_extra_keys=True)
    for kind in (str, bool, int):
        converter.register_structure_hook(kind, _scalar)
    converter.register_structure_hook(float, _number)
    converter.register_structure_hook_func(_is(Literal), _choice)
    converter.register_structure_hook_func(lambda hint: hint == Scalar, _one_of)
    converter.register_structure_hook_factory(dataclasses.is_dataclass, _checked(make_dict_structure_fn, dict))
    converter.register_structure_hook_factory(_is(dict), _checked(mapping_structure_factory, dict))
    converter.register_structure_hook_factory(_is(tuple), _checked(homogenous_tuple_structure_factory, list | tuple))
    converter.register_unstructure_hook(float, lambda value: value if math.isfinite(value) else str(value))
    return converter


def _scalar(value: object, hint: Any) -> object:
    if type(value) is not hint or (isinstance(value, int) and not 0 <= value < TOO_LARGE):
        raise _Refused(value)
    return value


def _one_of(value: object, hint: Any) -> object:
    for kind in get_args(hint):
        if type(value) is kind:
            return value if kind is NoneType else _number(value, kind) if kind is float else _scalar(value, kind)
    raise _Refused(value)


def _number(value: object, hint: Any) -> float:
    if isinstance(value, str) and value in NON_FINITE:
        return NON_FINITE[value]
    if type(value) not in (int, float):
        raise _Refused(value)
    try:
        return float(cast(float, value))
    except OverflowError:
        raise _Refused(value) from None


def _choice(value: object, hint: Any) -> object:
    if not isinstance(value, str) or value not in get_args(hint):
        raise _Refused(value)
    return value


def _checked(factory: Callable[..., Structure], kinds: type | UnionType) -> Callable[[Any, BaseConverter], Structure]:
    """Restricts ``factory`` to values of these kinds."""

    def make(hint: Any, converter: BaseConverter) -> Structure:
        structure = factory(hint, converter)

        def checked(value: Any, hint: Any) -> Any:
            if not isinstance(value, kinds):
                raise _Refused(value)
            return structure(value, hint)

        return checked

    return make


def _is(origin: Any) -> Callable[[Any], bool]:
    return lambda hint: get_origin(hint) is origin


_converter = _make()
