"""Turns lines of a trace into events, and validates them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin, get_type_hints

from conformance.trace.events.event import KINDS, Event


class MalformedEvent(ValueError):
    """A line of a trace is not a valid event. ``str()`` names the line and the reason."""


def read(line: dict[str, Any]) -> Event:
    """The event of a line of a trace. It shares the line's fields, so do not change the line afterwards.

    Does not validate: `check` or `check_all` do, where lines come in.
    """
    event = object.__new__(KINDS[line["event"]])
    event.__dict__ = line
    return event


def check(line: dict[str, Any]) -> None:
    """Check a line of a trace, except the elements of its lists.

    Raises:
        MalformedEvent: the kind is unknown, a field is missing or unknown, or a value has the wrong type.
    """
    shape = (line.get("event"), *line, *map(type, line.values()))
    if shape not in _SHAPES:
        _check(line)
        _SHAPES.add(shape)


def check_all(lines: Iterable[dict[str, Any]], rank: int) -> None:
    """Check the lines of a rank.

    Raises:
        MalformedEvent: a line is not a valid event.
    """
    for position, line in enumerate(lines):
        try:
            check(line)
        except MalformedEvent as error:
            raise MalformedEvent(f"event {position} of rank {rank}: {error}") from None


def check_inside(lines: Sequence[dict[str, Any]], rank: int) -> None:
    """Check the lines of a rank including the elements of lists, which takes long.

    Raises:
        MalformedEvent: as `check_all`; or an element or value does not fit the type of its field.
    """
    check_all(lines, rank)
    for position, line in enumerate(lines):
        kind = KINDS[line["event"]]
        for name, hint in hints(kind).items():
            if name in line and not _fits(line[name], hint):
                what = f"{kind.event} has an invalid value in the field {name!r}: {str(line[name])[:60]!r}"
                raise MalformedEvent(f"event {position} of rank {rank}: {what}")


def _fits(value: object, hint: Any, *, inside: bool = True) -> bool:
    """Whether a value is of this type; without `inside`, ignores the elements of lists and the choices of a Literal."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _fits(value, arguments[0], inside=inside)
    if origin is Literal:
        return value in arguments if inside else type(value) in map(type, arguments)
    if origin in (Sequence, tuple):
        if not isinstance(value, list | tuple) or not inside:
            return isinstance(value, list | tuple)
        types = arguments if origin is tuple else arguments * len(value)
        return len(value) == len(types) and all(map(_fits, value, types))
    if arguments:
        return any(_fits(value, one, inside=inside) for one in arguments)
    return type(value) is hint or (hint is float and type(value) is int)


#: Shapes that passed the check: a kind, and the names and types of the fields.
_SHAPES: set[tuple[object, ...]] = set()


def _check(line: Mapping[str, Any]) -> None:
    kind = KINDS.get(line.get("event", ""))
    if kind is None:
        raise MalformedEvent(f"{line.get('event')!r} is not a kind of event")
    fields = hints(kind)
    for name in sorted(fields.keys() - line.keys()):
        if is_required(kind, name):
            raise MalformedEvent(f"{kind.event} has no field {name!r}")
    for name in (name for name in line if name != "event"):
        if name not in fields:
            raise MalformedEvent(f"{kind.event} has an unknown field {name!r}")
        if not _fits(line[name], fields[name], inside=False):
            raise MalformedEvent(f"{kind.event} has a value of the wrong type in the field {name!r}: {line[name]!r}")


def hints(kind: type[Event]) -> dict[str, Any]:
    """The type of each field, with its description."""
    found = get_type_hints(kind, include_extras=True)
    return {name: hint for name, hint in found.items() if get_origin(hint) is not ClassVar}


def is_required(kind: type[Event], field: str) -> bool:
    """Whether an event of this kind always has the field."""
    return not hasattr(kind, field)
