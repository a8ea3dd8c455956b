"""The line that a person edits, and the change itself where it is mechanical.

Laws, known bugs and problems of a watch say as data where code changes; alternatives are joined by `; `, the first one
whose lines are known counts:

- `change clip`: the call is wrong. ``change step to `scaler.step({})` ``: its new form; {} is the old receiver.
- `remove schedule`: it is one call too many.
- `clip above step`: where a call belongs. It moves there, or is added if the trainer does not make it.
- `add the average above step`, `change the settings above step`: code without a call that is seen.
- `find the divisor at or above backward`, `find the number of ranks from load`, `find the formula in step`: code that
  the recorded calls do not locate, unless a line next to them has its name in backticks, such as `no_sync`.
- `clip right above step`: it moves over the lines in between, which it must follow.
- `remove the division between backward and step`: the same, with both ends, if one function has them.
- `restore optimizer`: the line that restored it, or else a new one below those that restore something.
- `change `Sum` near optimizer`: the nearest line around a call that has this name, if any has.
- `zero_grad also if skipped`: a call that a skipped step leaves out, by a `continue` above it.

A call is `it` (the line with the problem), `origin` (where that starts), `load`, `save`, or a kind of event, such as
`backward`; `clip|step` is the first of these that is known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from textwrap import dedent
from types import MappingProxyType

from .places import CALLED_FROM, CALLS, SEEN, Place, condition_of, marked

_CALL = re.compile(r"(?P<do>change|remove) (?P<call>[\w|]+)(?: to `(?P<to>.+)`)?")
_ORDER = re.compile(r"(?P<call>\w+) (?P<side>above|below) (?P<at>[\w|]+)")
_ELSEWHERE = re.compile(r"(?P<do>add|change) (?P<what>.+?) (?P<side>above|below) (?P<at>[\w|]+)")
_UNLOCATED = re.compile(r"find (?P<what>.+?) (?P<side>at or above|from|in) (?P<at>[\w|]+)")
_BETWEEN = re.compile(r"(?P<do>remove|find) (?P<what>.+?) between (?P<call>\w+) and (?P<at>\w+)")
_RIGHT_ABOVE = re.compile(r"(?P<call>\w+) right above (?P<at>\w+)")
_RESTORED = re.compile(r"restore (?P<what>\w+)")
_ALSO = re.compile(r"(?P<call>\w+) also if skipped")
_NEAR = re.compile(r"change `(?P<name>\w+)` near (?P<at>[\w|]+)")
_SAID = {
    "at or above": "{at} or above it",
    "from": "{at} or below it",
    "in": "{at}, or what it calls",
}
_IS_CODE = re.compile(r"`[^`]+`")
_METHOD = re.compile(r"(?P<space>\s*)(?P<of>[^=;#]+)\.\w+\(\)\s*(#.*)?")

_SAVES = re.compile(r"[\"'](?P<key>\w+)[\"'](?:: |\] = )(?P<of>[\w.]+)\.state_dict\(\)")
_LOADS = re.compile(r"\s*(?P<of>[\w.]+)\.load_state_dict\((?P<state>\w+)\[")

#: What a checkpoint has of each kind of object.
_LOADED = {
    "weights": "weights",
    "optimizer": "optimizer's state",
    "scheduler": "schedule's state",
    "scaler": "loss scale",
    "random": "random state",
    "average": "average",
}

#: The loss that a line sends backward: `loss.backward()`, `fabric.backward(loss)`.
_BACKWARD = re.compile(r"\b(?:(?P<of>\w+)\.backward\(\)|backward\((?P<given>\w+)[,)])")

_FUNCTION = re.compile(r"\s*(async )?def (?P<name>\w+)\((?P<takes>.*)")

_STEP = re.compile(r"\s*(?P<by>\S+)\.step\((?P<of>[\w.\[\]]*)\)\s*(#.*)?")

#: The call to add, by the kind of event that notes it.
_MISSING = {
    "clip": "nn.utils.clip_grad_norm_(model.parameters(), max_norm)",
    "schedule": "scheduler.step()",
    "step": "optimizer.step()",
    "unscale": "scaler.unscale_(optimizer)",
    "update": "scaler.update()",
    "zero_grad": "optimizer.zero_grad()",
}

#: More lines would not leave a problem on one screen.
_SEARCHED = 5

#: The role of a line whose caller is to be edited.
_CALLER = "in a caller of"

#: The role of the place of a new line.
_ROLES = {"above": "before", "below": "after", "at or above": "at or above", "from": "from", "in": "at"}


@dataclass(frozen=True)
class Edit:
    """place: the line to edit; for a new line, its neighbour. role: of the place in a title. does: the change, with the
    lines in it as `{file:line}`. code: these lines, marked as in a diff."""

    place: Place
    role: str
    does: str
    code: str

    @property
    def shown(self) -> frozenset[str]:
        """The lines that it names."""
        return frozenset(re.findall(r"\{(.*?:\d+)\}", self.does))

    def others(self, places: Iterable[Place]) -> tuple[Place, ...]:
        """The places that say more than the edit: neither calls that may be wrong, nor where the problem shows."""
        file, _, _ = self.place.at.rpartition(":")
        seen = {f"{file}:{number}" for number in re.findall(r"^. +(\d+) \|", self.code, re.MULTILINE)} | self.shown
        kept, is_of_call = list[Place](), False
        for one in places:
            # Its callers have no other label.
            is_of_call = one.label in (*CALLS, SEEN) or (is_of_call and one.label == CALLED_FROM)
            kept += [one] if one.at not in seen and not is_of_call else []
        return tuple(kept)

    def titled(self, role: str, where: str | None) -> tuple[str, str]:
        """The role and the line for a title: of the problem, if the edit names its line, else of the edit."""
        is_of_caller = self.role == _CALLER
        return (
            (role, where) if role == "at" and where in self.shown and not is_of_caller else (self.role, self.place.at)
        )

    def said(self, file: str) -> str:
        """The change in words. file: the one that needs no name."""
        return re.sub(
            r"\{(.*?):(\d+)\}", lambda at: f"line {at[2]}" if at[1] == file else f"{at[1]}:{at[2]}", self.does
        )


def edit_of(text: str, known: Mapping[str, Place]) -> Edit | None:
    """The edit that the data state. known: the lines by call. None if its lines are unknown."""
    return next((one for part in text.split("; ") if (one := _edit(part, known)) is not None), None)


def _edit(text: str, known: Mapping[str, Place]) -> Edit | None:
    if match := _CALL.fullmatch(text):
        place = _first(match["call"], known)
        if place is None:
            return None
        to = match["to"] and _named(match["to"], known, known.get("step"))
        return Edit(place, "at", f"{match['do']} {{{place.at}}}", _changed(place, match["do"], to))
    if match := _UNLOCATED.fullmatch(text):
        place = _first(match["at"], known)
        return None if place is None else _unlocated(match["what"], match["side"], place)
    for form, edits in _FORMS.items():
        if match := form.fullmatch(text):
            return edits(known, **match.groupdict())
    match = _ORDER.fullmatch(text) or _ELSEWHERE.fullmatch(text)
    at = _first(match["at"], known) if match else None
    if match is None or at is None:
        return None
    side = match["side"]
    if match.re is _ELSEWHERE:
        # New code has its place; code to change may be on each of the lines.
        new = match["what"][1:-1] if _IS_CODE.fullmatch(match["what"]) else f"# {match['what']}"
        code = _diff(at, side, new) if match["do"] == "add" else _towards(at, side)
        return Edit(at, _ROLES[side], f"{match['do']} {match['what']} {side} {{{at.at}}}", code)
    call, new = known.get(match["call"]), _MISSING.get(match["call"])
    if call is None:
        new = _named(new, known, at, known.get("step")) if new else None
        return Edit(at, _ROLES[side], f"add `{new}` {side} {{{at.at}}}", _diff(at, side, new)) if new else None
    if _are_apart(call, at) and (outer := _call_of_helper(call, at)) is not None:
        return _edit(text, {**known, match["call"]: outer})
    is_inside = len(_indent(call)) > len(_indent(at))
    if not is_inside and (_is_there(call, at, side) or (_follows(call, at, side) and call.own and at.own)):
        # It is in this order already, so moving it changes nothing.
        if (condition := _condition_without(call, at, side)) is not None:
            # The call is made also where the other one is not.
            # Its own `if` would be left empty.
            has_own = condition_of(call) is not None
            shown = {condition.number: condition.text}
            code = call.code if has_own else _diff(at, side, call.own.strip(), call, shown)
            does = "indent" if side == "below" else "move"
            return Edit(call, "at", f"{does} {{{call.at}}} under the `if` in {{{condition.at}}}", code)
        return Edit(call, "at", f"change {{{call.at}}}", call.code)
    if _follows(call, at, side) and (condition := condition_of(call)) is not None:
        # A call in the correct order that is not always made.
        if (flag := known.get(f"{match['call']}_flag")) is not None:
            does = f"change {{{flag.at}}}, or the condition in {{{condition.at}}}"
            return Edit(flag, "at", does, flag.code)
        lines = call.near(before=call.number - condition.number + 1)
        return Edit(condition, "at", f"change the condition in {{{condition.at}}}", marked(lines, condition.number))
    if _are_apart(call, at):
        if match["at"] != "it":
            return Edit(call, "at", f"change {{{call.at}}}", call.code)
        when = "before" if side == "above" else "after"
        return Edit(at, "at", f"let {{{call.at}}} run {when} {{{at.at}}}", at.code)
    return Edit(call, "at", f"move {{{call.at}}} {side} {{{at.at}}}", _diff(at, side, call.own.strip(), call))


def in_names(text: str, known: Mapping[str, Place]) -> str:
    """Advice with the script's own names of its optimizer, scaler and scheduler in the code between backticks."""
    return _IS_CODE.sub(lambda code: _named(code[0], known, known.get("step")), text)


def _named(code: str, known: Mapping[str, Place], *stepping: Place | None) -> str:
    """Code with the names in the lines that step. stepping: lines that step the optimizer, the likeliest first."""
    lines = ("" if one is None or one == known.get("schedule") else one.own for one in stepping)
    names = dict[str, str]()
    if (step := next((found for line in lines if (found := _STEP.fullmatch(line))), None)) is not None:
        names["optimizer"] = step["of"] or step["by"]
        names |= {"scaler": step["by"]} if step["of"] else {}
    schedule = known.get("schedule", known.get("it"))
    step = None if schedule is None else _STEP.fullmatch(schedule.own)
    if step is not None and step["by"] not in names.values():
        names["scheduler"] = step["by"]
    return re.sub(r"\b(optimizer|scaler|scheduler)\b(?=[.)])", lambda name: names.get(name[1], name[1]), code)


def _condition_without(call: Place, at: Place, side: str) -> Place | None:
    """The `if` around ``at``, where the call is outside, in the same function."""
    condition = condition_of(at)
    if condition is None:
        return None
    is_before = call.number in at.numbered and call.number < condition.number
    return condition if (is_before if side == "above" else len(_indent(call)) < len(_indent(at))) else None


def _are_apart(one: Place, other: Place) -> bool:
    """Whether two lines of a file are in two functions, as far as the lines around the first show where its function
    begins and ends."""
    if one.file != other.file:
        return False
    numbers = sorted(one.numbered)
    texts = {number: text for number, text in one.numbered.items() if text.strip()}
    header = texts.get(min(numbers, default=0), "").lstrip()
    if not header.startswith(("def ", "async def ")):
        return False
    outer = len(texts[numbers[0]]) - len(header)
    later = (at for at, text in texts.items() if at > one.number and len(text) - len(text.lstrip()) <= outer)
    return other.number < numbers[0] or other.number >= next(later, other.number + 1)


def _call_of_helper(call: Place, at: Place) -> Place | None:
    """The only line around ``at`` that calls the function whose only line is ``call``; None if there is none."""
    own = [line for line in call.numbered.values() if line.strip()]
    header = _FUNCTION.match(own[0])
    outer = len(own[0]) - len(own[0].lstrip())
    inside = [*takewhile(lambda line: len(line) - len(line.lstrip()) > outer, own[1:])]
    calls = re.compile(rf"(?<!def )\b{header['name']}\(") if header and inside == [call.own] else None
    found = [number for number, line in at.numbered.items() if calls is not None and calls.search(line)]
    return Place(call.label, f"{at.file}:{found[0]}", at.numbered[found[0]]) if len(found) == 1 else None


def _unlocated(what: str, side: str, at: Place) -> Edit:
    """The nearest line with the name in ``what``, or that scales what the line sends backward, or else where to look
    for it."""
    names = re.findall(r"`(.+?)`", what)
    named = [number for number, line in at.numbered.items() if any(name in line for name in names)]
    loss, scales = _BACKWARD.search(at.own), None
    if loss is not None and re.search(r"\b(loss|divisor|divisions?|factor)\b", what):
        scales = re.compile(rf"\s*{loss['of'] or loss['given']}\s*([*/]=|=(?!=).*[*/])")
        named = [number for number, line in at.numbered.items() if number < at.number and scales.match(line)]
    if named:
        number = min(named, key=lambda one: abs(one - at.number))
        where = f"{at.at.rpartition(':')[0]}:{number}"
        own_line = Place(at.label, where, at.numbered[number])
        between = {one: text for one, text in at.numbered.items() if number - 1 <= one <= max(number, at.number) + 1}
        return Edit(own_line, "at", f"change {what} in {{{where}}}", marked(between, number))
    if scales is not None and loss is not None and (name := _taker(at, loss["of"] or loss["given"])) is not None:
        does = f"find {what} where `{name}` is called: {{{at.at}}} only sends the loss backward"
        return Edit(at, _CALLER, does, _towards(at, side))
    return Edit(at, _ROLES[side], f"find {what}: {_SAID[side].format(at=f'{{{at.at}}}')}", _towards(at, side))


def _taker(at: Place, loss: str) -> str | None:
    """The function around a line, if it takes the loss and does not change it: its callers do."""
    before = [text for number, text in at.numbered.items() if number < at.number]
    header = _FUNCTION.match(before[0]) if before else None
    is_changed = any(re.match(rf"\s*{loss}\b[^=]*=(?!=)", text) for text in before)
    return header["name"] if header and re.search(rf"\b{loss}\b", header["takes"]) and not is_changed else None


def _between(known: Mapping[str, Place], do: str, what: str, call: str, at: str) -> Edit | None:
    """Code between two calls of one function; None if there is none, or it is too long to be shown."""
    first, last = known.get(call), known.get(at)
    if first is None or last is None or not _are_around(first, last):
        return None
    # The last line only shows the problem, so it is not the one for the title.
    does, inside = f"{do} {what} between {{{first.at}}} and line {last.number}", range(first.number + 1, last.number)
    return Edit(last, "before", does, marked(last.near(before=last.number - first.number, after=0), *inside))


def _are_around(first: Place, last: Place) -> bool:
    """Whether there are lines between two calls of one function, which are all shown."""
    return first.file == last.file and last.number - first.number > 1 and first.number in last.numbered


def _right_above(known: Mapping[str, Place], call: str, at: str) -> Edit | None:
    first, last = known.get(call), known.get(at)
    if first is None or last is None or not _are_around(first, last) or _indent(first) != _indent(last):
        return _edit(f"{call} above {at}", known)
    code = _diff(last, "above", first.own.strip(), first)
    return Edit(first, "at", f"move {{{first.at}}} above {{{last.at}}}", code)


def _restored(known: Mapping[str, Place], what: str) -> Edit | None:
    """The line that restored it, or a load of it below the others, or else where to look for it."""
    missing = f"the load of the {_LOADED[what]}"
    return (
        _edit(f"change restored_{what}", known)
        or _not_loaded(known, what)
        or edit_of(f"add {missing} below restores; find {missing} from load", known)
    )


def _not_loaded(known: Mapping[str, Place], what: str) -> Edit | None:
    """A load of what the lines around `save` save, behind the other loads."""
    load, saved = known.get("load"), known.get("save")
    if load is None or saved is None or not load.own:
        return None
    below = {number: text for number, text in load.numbered.items() if number >= load.number}
    saves = {number: found for number, text in saved.numbered.items() if (found := _SAVES.search(text))}
    by = next((number for number, one in saves.items() if what in one["of"]), None)
    if by is None or any(f"{what}.load_state_dict" in text for text in below.values()):
        return None
    # A deeper line may not always run.
    loads = {
        number: one
        for number, text in below.items()
        if (one := _LOADS.match(text)) and _indent_of(text) == _indent(load)
    }
    at, of, key = max(loads, default=load.number), saves[by]["of"], saves[by]["key"]
    roots = {one["of"].partition(".")[0] for one in loads.values()}
    # Another function may have another name for it.
    is_named = loads and of.partition(".")[0] in roots
    new = f'{of}.load_state_dict({loads[at]["state"]}["{key}"])' if is_named else f"# load `{of}`"
    where = f"{load.file}:{at}"
    does = f"load the state below {{{where}}}: {{{saved.file}:{by}}} saves it"
    near = {number: text for number, text in below.items() if number <= at + 1}
    code = "\n".join(_rows(near, set(), {at: [_indent(load) + new]}))
    return Edit(Place(load.label, where, below[at]), "after", does, code)


def _near(known: Mapping[str, Place], name: str, at: str) -> Edit | None:
    """The nearest line with a name, around a call; None if there is none."""
    place = _first(at, known)
    named = [number for number, line in (place.numbered if place else {}).items() if re.search(rf"\b{name}\b", line)]
    if place is None or not named:
        return None
    number = min(named, key=lambda one: abs(one - place.number))
    own = Place(place.label, f"{place.file}:{number}", place.numbered[number])
    near = {one: text for one, text in place.numbered.items() if abs(one - number) <= 1}
    return Edit(own, "at", f"change `{name}` in {{{own.at}}}", marked(near, number))


def _also(known: Mapping[str, Place], call: str) -> Edit | None:
    """The call above the `continue` that leaves it out; else the call, if its line has it."""
    place = known.get(call)
    if place is None or call not in place.own:
        return None
    exits = [at for at, text in place.numbered.items() if at < place.number and text.strip() == "continue"]
    if not exits:
        return Edit(place, "at", f"make the call in {{{place.at}}} also in skipped steps", place.code)
    at, new = exits[-1], place.own.strip()
    near = {number: place.numbered[number] for number in (at - 1, at, at + 1) if number in place.numbered}
    code = "\n".join(_rows(near, set(), {at - 1: [_indent_of(near[at]) + new]}))
    where = f"{place.file}:{at}"
    return Edit(Place("at", where, near[at]), "before", f"add `{new}` above {{{where}}}", code)


_FORMS: Mapping[re.Pattern[str], Callable[..., Edit | None]] = {
    _BETWEEN: _between,
    _RIGHT_ABOVE: _right_above,
    _RESTORED: _restored,
    _ALSO: _also,
    _NEAR: _near,
}


def _towards(at: Place, side: str) -> str:
    """The lines on this side of a line: code that the calls do not locate is likely among them."""
    near = at.near(before=_SEARCHED, after=0) if side.endswith("above") else at.near(after=_SEARCHED)
    return marked(near, at.number) if near else ""


def _first(calls: str, known: Mapping[str, Place]) -> Place | None:
    return next((known[call] for call in calls.split("|") if call in known), None)


def _is_there(call: Place, at: Place, side: str) -> bool:
    """Whether the call is already next to the other one, on this side; so it does not move."""
    (file, one), (other, two) = (place.at.rsplit(":", 1) for place in (call, at))
    return file == other and int(two) - int(one) in (0, 1 if side == "above" else -1)


def _indent(place: Place) -> str:
    return _indent_of(place.own)


def _indent_of(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _follows(call: Place, at: Place, side: str) -> bool:
    """Whether a call is on this side of the other one in its file."""
    (file, one), (other, two) = (place.at.rsplit(":", 1) for place in (call, at))
    return file == other and (int(one) < int(two)) == (side == "above")


def _changed(place: Place, do: str, to: str | None) -> str:
    # A name may be another one's by then, such as of a window that is loaded ahead.
    sizes = re.findall(r"len\((\w+)\)", to or "")
    if any(re.match(rf"\s*{name} = ", text) for name in sizes for text in place.numbered.values()):
        return place.code
    method = _METHOD.fullmatch(place.own) if to else None
    if not place.own or (method is None and do == "change"):
        return place.code
    receiver = method["of"] if method else ""
    if re.fullmatch(r"\([^()]*\)", receiver):
        receiver = receiver[1:-1]
    new = f"{method['space']}{to.format(receiver)}" if method and to else None
    return "\n".join(_rows(place.near(), {place.number}, {} if new is None else {place.number: [new]}))


def _diff(
    at: Place, side: str, new: str, moved: Place | None = None, also: Mapping[int, str] = MappingProxyType({})
) -> str:
    """The lines around both places, with the new one at its side of the first, indented like it. also: further lines,
    by number."""
    if not at.own or not new:
        return (moved.code if moved else "") or at.code
    before = at.number - (side == "above")
    is_one_file = moved is not None and moved.at.rpartition(":")[0] == at.at.rpartition(":")[0]
    near = (moved.near() if moved and is_one_file else {}) | at.near() | dict(also)
    gone = {moved.number} if moved and is_one_file else set[int]()
    return "\n".join(_rows(near, gone, {before: [_indent(at) + new]}))


def _rows(near: Mapping[int, str], gone: set[int], new: Mapping[int, list[str]]) -> Iterator[str]:
    """The lines by number, then the new ones that follow each, without their common indentation."""
    near = {number: text for number, text in near.items() if text.strip() or number + 1 in near}
    rows, before = list[tuple[str, int | str, str]](), 0
    for number in sorted({*near, *new}):
        if before and number > before + 1:
            rows.append((" ", "...", ""))
        if number in near:
            rows.append(("-" if number in gone else " ", number, near[number]))
        rows += [("+", "", line) for line in new.get(number, ())]
        before = number
    width, texts = len(str(max(near))), dedent("\n".join(text for *_, text in rows)).split("\n")
    for (mark, at, _), text in zip(rows, texts, strict=True):
        yield f"{mark} {'' if at == '...' else at:>{width}} | {at if at == '...' else text}".rstrip()
