"""SARIF 2.1.0, for code scanning: a result for each cause, at the line of the trainer that it names.

https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from conformance.results import Results

from ..card import Card, cards, counted
from ..causes import Cause

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def sarif(results: Results) -> str:
    """JSON."""
    found = [(_rule(card.cause), card) for card in cards(results)]
    says = {law.law: law.says for law in results.header.laws}
    rules = [
        {"id": rule, "shortDescription": {"text": says.get(rule, _KINDS.get(rule, rule))}}
        for rule in dict.fromkeys(rule for rule, _ in found)
    ]
    driver = {
        "name": results.header.tool,
        "semanticVersion": results.header.version,
        "rules": rules,
    }
    run = {"tool": {"driver": driver}, "results": [_result(rule, card) for rule, card in found]}
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


#: What is said of causes that are no laws, by `Cause.kind`.
_KINDS = {
    "setup": "The adapter does not train what the case asks for.",
    "ending": "The case did not end as it should.",
    "guard": "What must hold before numbers mean anything does not.",
    "bug": "The numbers are those of a known bug.",
    "factor": "Gradients or learning rates are wrong by a factor.",
    "factors": "Gradients or learning rates are wrong by factors.",
    "reason": "Nothing can be concluded.",
    "unknown": "The numbers are wrong.",
}


def _rule(cause: Cause) -> str:
    return cause.key.partition("@")[0] if cause.kind == "law" else cause.kind


def _result(rule: str, card: Card) -> dict[str, Any]:
    text = "\n".join([*card.lines(), counted(card.cases)])
    result: dict[str, Any] = {"ruleId": rule, "level": "error", "message": {"text": text}}
    if card.own_line is not None:
        file, line = card.own_line
        uri = Path(os.path.relpath(file)).as_posix()
        region = {"startLine": line}
        result["locations"] = [{"physicalLocation": {"artifactLocation": {"uri": uri}, "region": region}}]
    return result
