"""A page of the site for each law: what it checks and why, wrong and correct code, and what a run or a watch says.

The wrong code is a mutant of fixtures/mutants, or a script of fixtures/scripts/wrong. `tools/site.py` runs all of them
when it builds the site, so the pages show what the code of today says.
"""

from __future__ import annotations

import difflib
import inspect
import json
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from textwrap import wrap

from conformance.laws.chapters import CHAPTERS
from conformance.laws.explain import HARMLESS, settled_by
from conformance.laws.law import Law, catalogue
from conformance.report.card import cards, first_difference
from conformance.report.text import plural
from conformance.results.reader import Results
from conformance.results.result_lines import PASSED, CaseRecord, Header
from fixtures.specimens import BASES, Specimen, specimens
from fixtures.watched import Script, scripts

ROOT = Path(__file__).parents[1]
#: Where a document of a law's source is, by words of its name.
SOURCES = {
    "Automatic Mixed Precision examples": "https://docs.pytorch.org/docs/stable/notes/amp_examples.html",
    "DistributedDataParallel": (
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html"
    ),
    "torch.nn.utils.clip_grad_norm_": (
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html"
    ),
    "torch.amp": "https://docs.pytorch.org/docs/stable/amp.html",
    "torch.autocast": "https://docs.pytorch.org/docs/stable/amp.html",
    "torch.distributed": "https://docs.pytorch.org/docs/stable/distributed.html",
    "torch.optim": "https://docs.pytorch.org/docs/stable/optim.html",
    "Performance Tuning Guide": "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
    "Horovod documentation": "https://horovod.readthedocs.io/en/stable/pytorch.html",
}
_LEVELS = {"MUST": "breaking it fails the case", "SHOULD": "breaking it is a warning"}
_WIDTH = 80
_TRIES = 2
#: Lines of a diff; one with more is of another script.
_MOST_CHANGED = 12


@cache
def mutants() -> Mapping[str, Specimen]:
    """By law, the mutant that shows it best: it breaks no other law, runs in most places, and is short."""
    found: dict[str, list[Specimen]] = defaultdict(list)
    # A trainer that breaks no more than a SHOULD is a correct variant.
    for one in [*specimens("mutants"), *specimens("variants")]:
        for id in one.laws:
            found[id].append(one)
    return {id: min(those, key=_rank) for id, those in found.items()}


def _rank(one: Specimen) -> tuple[object, ...]:
    is_plain = one.base is not None and one.base.parent == BASES[0] and one.cases[0].startswith(("single", "ddp"))
    return one.cannot_run, len(one.laws), not is_plain, one.base is None, one.path.stat().st_size, one.name


@cache
def watched() -> Mapping[str, Script]:
    """By law, the shortest wrong script that needs no package but torch, and whose first problem breaks it."""
    from fixtures.watched_scripts import ranks

    those = [one for one in scripts() if one.law and one.needs is None and ranks(one) is not None]
    those.sort(key=lambda one: one.path.stat().st_size, reverse=True)
    return {str(one.law): one for one in those}


def pages() -> Iterator[tuple[str, str]]:
    """The id and the page of each law."""
    of_runs = {id: one for id, one in mutants().items() if not one.cannot_run}
    with ProcessPoolExecutor(os.cpu_count(), get_context("fork")) as pool:
        cases = dict(zip(of_runs, pool.map(_case, of_runs, of_runs.values()), strict=True))
        texts = dict(zip(watched(), pool.map(_watch, watched().values()), strict=True))
    for law in catalogue():
        yield law.id, page(law, cases.get(law.id), texts.get(law.id))


def page(law: Law, case: CaseRecord | None, text: str | None) -> str:
    """case: of the law's mutant, run. text: what a watch says of the law's script."""
    parts = [f"# {law.id}", f"**{law.says}**", _facts(law), "## Why", law.why]
    if law.latent or law.cleared_by_numbers:
        parts += [f"**If the numbers are correct:** {law.latent or HARMLESS}"]
    parts += _of_a_run(law, case) if law.needs_plan else _of_a_watch(law, text)
    return "\n\n".join(parts) + "\n"


def _facts(law: Law) -> str:
    command = "`conformance run`" if law.needs_plan else "`conformance watch`"
    rows = [
        ("Chapter", CHAPTERS[law.chapter]),
        ("Checked by", command),
        ("Level", f"{law.level}: {_LEVELS[law.level]}" if law.needs_plan else law.level),
    ]
    if law.shows:
        link = f"[{law.shows[0]}](../../properties.md#{law.shows[0]})"
        rows.append(("Property", f"{link}, {settled_by(law).partition(': ')[2] or settled_by(law)}"))
    if law.unless:
        rows.append(("Not reported next to", ", ".join(f"[{id}]({_page_of(id)})" for id in law.unless)))
    if twin := _twin(law):
        rows.append(("Its counterpart", f"[{twin.id}]({_page_of(twin.id)}), checked by the other command"))
    if law.source:
        rows.append(("Source", _source(law.source)))
    rows.append(("Code", _code(law)))
    return "\n".join(["| | |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in rows)])


def _page_of(id: str) -> str:
    return f"../{id}.md"


def _twin(law: Law) -> Law | None:
    """The law of the same name for the other command."""
    name = law.id.partition("/")[2]
    same = (one for one in catalogue() if one.id.endswith(f"/{name}") and one.needs_plan != law.needs_plan)
    return next(same, None)


def _source(text: str) -> str:
    link = next((url for words, url in SOURCES.items() if words in text), None)
    return f"[{text}]({link})" if link else text


def _code(law: Law) -> str:
    """The function that checks a run, or the files whose judges name a law of a watch."""
    if law.needs_plan:
        file, (_, line) = Path(inspect.getsourcefile(law.judges) or ""), inspect.getsourcelines(law.judges)
        return f"[`{law.judges.__name__}`](../../../{_in_repository(file)}#L{line})"
    judges = sorted((ROOT / "conformance/watch/judging").glob("*.py"))
    files = [file for file in judges if f'"{law.id}"' in file.read_text()]
    files = files or [ROOT / "conformance/watch/verdict.py"]
    return ", ".join(f"[{file.name}](../../../{_in_repository(file)})" for file in files)


def _in_repository(file: Path) -> Path:
    """Also of an installed package."""
    parts = file.parts
    return (
        Path(*parts[len(parts) - parts[::-1].index("conformance") - 1 :])
        if not file.is_relative_to(ROOT)
        else (file.relative_to(ROOT))
    )


def _of_a_run(law: Law, case: CaseRecord | None) -> Iterator[str]:
    mutant = mutants()[law.id]
    what, *seen = mutant.message.partition("\n\nBase:")[0].partition("\n\nCases:")[0].split("\n\n")
    yield "## Wrong"
    yield " ".join(what.split())
    if mutant.base is not None:
        patch = mutant.path.read_text().partition("\n@@\n")[2].replace("\n@@\n", "\n ...\n")
        yield f"```diff\n{patch.rstrip()}\n```"
    yield from (" ".join(paragraph.split()) for paragraph in seen)
    yield f"From [{mutant.name}](../../../{mutant.path.relative_to(ROOT)})."
    yield f"## Right\n\n```python\n{law.fix}\n```"
    yield "## What a run says"
    text = None if case is None or case.verdict == "UNAVAILABLE" else _said(law, case)
    if text is None:
        yield f"This page shows no run: case `{mutant.cases[0]}` did not finish on the machine that built the page."
    else:
        assert case is not None
        yield f"`conformance run` of the wrong code, case `{case.id}`, verdict {case.verdict}:"
        yield f"```text\n{text}\n```"
    if found := published().get(law.id):
        yield "## In frameworks"
        yield "\n".join(
            f"- [{' '.join(filter(None, [name, version]))}](../../../reports/{name}.html): {plural(count, 'case')}"
            for name, version, count in found
        )


def _said(law: Law, case: CaseRecord) -> str | None:
    """The card of the law; of a law whose breach is a warning, what it says."""
    header = Header("trainer-conformance", "", "", "", 1)
    for card in cards(Results(header, (case,))) if case.failed else ():
        if card.rule == law.id:
            return _wrapped(line for line in card.lines() if not line.startswith(("script:", "again:")))
    for finding in case.findings:
        if finding.law == law.id:
            parts = "expected", "observed", "why", "effect", "numbers"
            said = [f"{part}: {text}" for part in parts if (text := getattr(finding, part))]
            where = [f"at: {Path(finding.where).name}"] if finding.where else []
            return _wrapped([*where, *said, *first_difference(case)])
    return None


def _of_a_watch(law: Law, text: str | None) -> Iterator[str]:
    if (script := watched().get(law.id)) is not None:
        yield "## Wrong"
        edit = _edit(script)
        if sum(line.startswith(("-", "+")) for line in edit) <= _MOST_CHANGED:
            yield f"{script.what} In this script {script.cause}. The correct script has the lines with a minus."
            yield "```diff\n" + "\n".join(edit) + "\n```"
        else:
            yield f"{script.what} In this script {script.cause}."
            yield "```python\n" + "\n".join(_body(script)) + "\n```"
        yield f"From [{script.name}](../../../{script.path.relative_to(ROOT)})."
    yield f"## Right\n\n{law.fix[:1].upper()}{law.fix[1:]}."
    yield "## What a watch says"
    if script is None:
        yield "This page shows no watch: the repository has no short script that breaks this law."
    elif text is None:
        yield "This page shows no watch: the script did not finish on the machine that built the page."
    else:
        command = " ".join([*script.start, script.path.name])
        yield f"```sh\nconformance watch -- {command}\n```\n\n```text\n{_wrapped(text.splitlines())}\n```"


def _edit(script: Script) -> list[str]:
    """The difference from the most similar correct script."""
    own = _body(script)
    right = [one for one in scripts() if one.cause is None]
    return min((_difference(_body(one), own) for one in right), key=len)


def _body(script: Script) -> list[str]:
    return re.sub(r'\A"""[^"]*"""\n(#.*\n)*\s*', "", script.path.read_text()).splitlines()


def _difference(before: Sequence[str], after: Sequence[str]) -> list[str]:
    lines = [*difflib.unified_diff(before, after, n=2, lineterm="")][2:]
    return [" ..." if line.startswith("@@") else line for line in lines][1:]


def _wrapped(lines: Iterator[str] | Sequence[str]) -> str:
    """As a terminal does. Files of specimens are named without their folders."""
    found: list[str] = []
    for line in lines:
        line = re.sub(r"[^\s(]*/(?:specimens|mutants|wrong)/(?=\w+\.py)", "", line)
        found += wrap(line, _WIDTH, break_long_words=False, break_on_hyphens=False) if len(line) > _WIDTH else [line]
    return "\n".join(found)


def _case(id: str, mutant: Specimen) -> CaseRecord:
    """The first case in which a mutant breaks a law; the last one if none does."""
    from conformance.suite.one_item import run
    from conformance.suite.servers import Servers
    from fixtures.kill import items

    servers = Servers()
    try:
        for item in items(mutant, servers):
            case = run(item, servers, mutant.time_limit)
            if any(finding.law == id for finding in case.findings):
                break
        return case
    finally:
        servers.close()


def _watch(script: Script) -> str | None:
    """What a watch says. On a loaded machine, a script may reach its time limit."""
    from fixtures.watched_scripts import judged

    for _ in range(_TRIES):
        if (one := judged(script)).verdict == script.expected:
            return str(one.why)
    return None


@cache
def published() -> Mapping[str, Sequence[tuple[str, str, int]]]:
    """By law, the published reports of frameworks in which cases break it: name, version, number of cases."""
    found: dict[str, list[tuple[str, str, int]]] = defaultdict(list)
    for file in sorted((ROOT / "reports").glob("*.jsonl")):
        with file.open(encoding="utf-8") as lines:
            header = json.loads(next(lines))
            # Most of the lines are cases that break no law.
            cases = [json.loads(line) for line in lines if '"findings"' in line]
        broken = [{finding["law"] for finding in case["findings"]} for case in cases if case["verdict"] not in PASSED]
        for id in sorted(set().union(*broken)):
            machine = header["machine"]
            # Some distributions are named like their module.
            version = str(machine.get(file.stem) or machine.get(file.stem.replace("-", "_"), ""))
            found[id].append((file.stem, version, sum(id in laws for laws in broken)))
    return found
