"""The lines of a trace as events, and whether they are valid ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin, get_type_hints

from conformance.trace.events.event import KINDS, Event


class MalformedEvent(ValueError):
    """A line of a trace is not a valid event. ``str()`` says which line and why."""


def read(line: dict[str, Any]) -> Event:
    """The event that a line of a trace holds, which shares its fields: leave the line as it is from now on.

    Lines are checked where they come in, with `check` or `check_all`, and not again here.
    """
    event = object.__new__(KINDS[line["event"]])
    event.__dict__ = line
    return event


def check(line: dict[str, Any]) -> None:
    """Check a line of a trace, but for what is inside its lists.

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
        MalformedEvent: a line is not a valid event; says which.
    """
    for position, line in enumerate(lines):
        try:
            check(line)
        except MalformedEvent as error:
            raise MalformedEvent(f"event {position} of rank {rank}: {error}") from None


def check_inside(lines: Sequence[dict[str, Any]], rank: int) -> None:
    """Check what is inside the fields too, which takes long.

    Raises:
        MalformedEvent: as `check_all`; or a list or number in a field is not what its description says.
    """
    check_all(lines, rank)
    for position, line in enumerate(lines):
        kind = KINDS[line["event"]]
        for name, hint in hints(kind).items():
            if name in line and not _fits(line[name], hint):
                what = f"{kind.event} has {str(line[name])[:60]!r} in the field {name!r}"
                raise MalformedEvent(f"event {position} of rank {rank}: {what}, which cannot be")


def _fits(value: object, hint: Any, *, inside: bool = True) -> bool:
    """Whether a value is of this type; without `inside`, but for what is in its lists and which of some words it is."""
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


#: What was found to be right: a kind, and the names and types of the fields.
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
            raise MalformedEvent(f"{kind.event} has {line[name]!r} in the field {name!r}, which has another type")


def hints(kind: type[Event]) -> dict[str, Any]:
    """The type of each field, with its description."""
    found = get_type_hints(kind, include_extras=True)
    return {name: hint for name, hint in found.items() if get_origin(hint) is not ClassVar}


def is_required(kind: type[Event], field: str) -> bool:
    """Whether an event of this kind always has the field."""
    return not hasattr(kind, field)
