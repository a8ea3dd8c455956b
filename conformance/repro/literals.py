"""Values of a case as Python source."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from conformance.adapter.optimizer_settings import OptimizerSettings

_WIDTH = 116


def literal(value: Any) -> str:
    """The expression for a value; records become `SimpleNamespace`s."""
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, torch.device):
        return f"torch.device({json.dumps(str(value))})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{literal(key)}: {literal(one)}' for key, one in value.items())}}}"
    if isinstance(value, list) and _counts_on(value):
        return f"[*range({value[0]}, {value[-1] + 1})]"
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    if isinstance(value, tuple):
        return f"({', '.join(map(literal, value))}{',' * (len(value) == 1)})"
    if is_dataclass(value):
        named = {field.name: getattr(value, field.name) for field in fields(value)}
        if isinstance(value, OptimizerSettings):
            named["arguments"] = value.arguments
        return f"SimpleNamespace({', '.join(f'{name}={literal(one)}' for name, one in named.items())})"
    # A float as it is read again, to the bit.
    return f'float("{value}")' if repr(value) in ("inf", "-inf", "nan") else str(value)


def _counts_on(numbers: list[Any]) -> bool:
    """Whether these are numbers in a row, and so many that a range is shorter."""
    are_numbers = len(numbers) > 4 and all(type(one) is int for one in numbers)
    return are_numbers and numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def assigned(name: str, value: Any, comment: str = "") -> str:
    """``name = value``, in as many lines as it needs, with a comment above it."""
    return f"# {comment}\n{name} = {_wrapped(value)}" if comment else f"{name} = {_wrapped(value)}"


def _wrapped(value: Any, indent: str = "") -> str:
    plain = literal(value)
    if len(plain) + len(indent) < _WIDTH - 20 or not isinstance(value, list | dict):
        return plain
    if isinstance(value, dict):
        inside = (f"{indent}    {literal(name)}: {_wrapped(one, indent + '    ')}," for name, one in value.items())
        return "\n".join(["{", *inside, f"{indent}}}"])
    lines = [f"{indent}    {_wrapped(one, indent + '    ')}," for one in value]
    if all("\n" not in line and len(line.strip()) < (_WIDTH - len(indent)) // 2 for line in lines):
        lines = [f"{indent}    {line}" for line in _filled([line.strip() for line in lines], _WIDTH - len(indent))]
    return "\n".join(["[", *lines, f"{indent}]"])


def _filled(items: list[str], width: int) -> list[str]:
    """As many items in a line as fit."""
    lines = [""]
    for item in items:
        if len(lines[-1]) + len(item) > width - 4:
            lines.append("")
        lines[-1] += f" {item}" if lines[-1] else item
    return lines
