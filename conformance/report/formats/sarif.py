"""SARIF 2.1.0, for code scanning: a result for each cause, at the line of the trainer that it names.

https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..card import Card
from ..command import relative
from ..digest import Digest
from ..text import visible

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def sarif(digest: Digest) -> str:
    """JSON."""
    name, version = map(visible, digest.tool)
    rules = [
        {"id": visible(rule), "shortDescription": {"text": visible(digest.rules.get(rule, rule))}}
        for rule in dict.fromkeys(card.rule for card in digest.cards)
    ]
    driver = {"name": name, "semanticVersion": version, "rules": rules}
    run = {"tool": {"driver": driver}, "results": [_result(card) for card in digest.cards]}
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def _result(card: Card) -> dict[str, Any]:
    text = "\n".join([*card.lines(), card.extent])
    result: dict[str, Any] = {"ruleId": visible(card.rule), "level": "error", "message": {"text": visible(text)}}
    if card.own_line is not None:
        file, line = card.own_line
        uri = visible(Path(relative(file)).as_posix())
        region = {"startLine": line}
        result["locations"] = [{"physicalLocation": {"artifactLocation": {"uri": uri}, "region": region}}]
    return result
