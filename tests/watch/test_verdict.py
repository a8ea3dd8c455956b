"""The verdict of a watch: rows, their states, stated expectations, and the sentences of all codes."""

import ast
import re
from collections import Counter
from pathlib import Path
from string import Formatter

import pytest

import conformance
from conformance.cli import main
from conformance.cli.exits import CONFORMING, NOT_CONFORMING, UNDECIDED
from conformance.cli.watch import _exit
from conformance.laws.chapters.watch_scripts import AS_EXPECTED, LAWS
from conformance.watch.judging.findings import Finding, Findings, said
from conformance.watch.judging.properties import CORE, FACTS, VALUES, Property
from conformance.watch.report.digest import row_texts
from conformance.watch.report.remedies import EDITS, EFFECTS, FIXES
from conformance.watch.report.sentences import WORDS
from conformance.watch.verdict import outcome, stated

RANKS, MICRO_BATCHES, CLEARING = CORE
SUM, OWN, HOOK = (RANKS, "sum"), (RANKS, "own"), (RANKS, None)


def findings(*, steps=None, open_=(), laws=(), seen=None, lacks=False):
    """steps: the number of steps by what they show. open_: codes of facts. laws: violated ones."""
    found = Findings()
    for shows, count in ({(): 4} if steps is None else steps).items():
        found.judged(*shows, count=count)
    for code in open_:
        found.leave_open(said(code))
    for law in laws:
        found.add(Finding(law, said("no-gradient"), 0, (0,)))
    found.seen = Counter(seen or {})
    if lacks:
        found.lack(said("no-torch"))
    return found


def rows(found, expected=None):
    of = outcome(found, expected)
    return of.verdict, {row.of.value: (row.state, row.proven, row.judged) for row in of.rows if row.judged or row.wrong}


def texts(found):
    return {row.of.value: " | ".join(row_texts(row, found)) for row in outcome(found).rows}


def test_an_open_row_without_a_fact_names_the_properties_that_block_it():
    found = findings(steps={(): 3, (HOOK,): 1}, laws=["watch/averaged"])
    assert texts(found)["clearing"] == "3 of 4 steps; others not judged because of ranks"


def test_all_rows_count_the_same_steps_and_say_why_some_are_left_out():
    found = findings(steps={(): 6}, seen={Property.CLIPPING: 8, Property.DENOMINATOR: 2, Property.SCHEDULE: 8})
    found.ranks, found.idle = 2, Counter({"idle.not-finite": 2})
    said_of = texts(found)
    assert said_of["ranks"].startswith("6 of 8 steps (4 on each rank); 2 with infinite or NaN gradients: ")
    assert said_of["clipping"].startswith("4 of 4 steps: ")
    assert said_of["denominator"].startswith("checked in 2 of 4 steps: ")
    assert said_of["schedule"].startswith("4 schedule steps: ")


@pytest.mark.parametrize(
    ("has_parts", "ranks", "agreement"),
    [
        (False, "the mean of all ranks", "all ranks have the same weights"),
        (True, "each replica and part: the gradient of all samples", "replicas have the same weights"),
    ],
)
def test_a_proven_row_is_true_of_parts(has_parts, ranks, agreement):
    found = findings(seen={Property.AGREEMENT: 4})
    found.ranks, found.has_parts = 2, has_parts
    said_of = texts(found)
    assert said_of["ranks"].endswith(f": {ranks}")
    assert said_of["agreement"].endswith(f": {agreement}")


PROVEN = {"ranks": ("PROVEN", 4, 4), "micro-batches": ("PROVEN", 4, 4), "clearing": ("PROVEN", 4, 4)}


@pytest.mark.parametrize(
    ("options", "verdict", "others"),
    [
        ({}, "CONFORMS", {}),
        ({"lacks": True}, "UNDECIDED", {}),
        # An open property does not concern the others, unless nothing is known of the step.
        ({"steps": {(): 3, (SUM,): 1}, "open_": ["ranks.sum"]}, "UNDECIDED", {"ranks": ("OPEN", 3, 4)}),
        ({"steps": {(SUM,): 4}, "open_": ["ranks.sum"]}, "UNDECIDED", {"ranks": ("OPEN", 0, 4)}),
        (
            {"steps": {(): 3, (HOOK,): 1}, "open_": ["ranks.hook"]},
            "UNDECIDED",
            {"ranks": ("OPEN", 3, 4), "micro-batches": ("OPEN", 3, 4), "clearing": ("OPEN", 3, 4)},
        ),
        # A fact that is known only at the end is in some of the steps that were judged before.
        ({"open_": ["clearing.shared"]}, "UNDECIDED", {"clearing": ("OPEN", 3, 4)}),
        ({"open_": ["clearing.discarded"] * 3}, "UNDECIDED", {"clearing": ("OPEN", 1, 4)}),
        ({"open_": ["micro-batches.divided-twice"]}, "UNDECIDED", {"micro-batches": ("OPEN", 3, 4)}),
        (
            {"open_": ["data.same-order"], "seen": {Property.DATA: 7}},
            "CONFORMS",
            {"data": ("OPEN", 7, 7)},
        ),
        ({"seen": {Property.SCHEDULE: 7}}, "CONFORMS", {"schedule": ("PROVEN", 7, 7)}),
        ({"laws": ["watch/used"]}, "DOES NOT CONFORM", {"clearing": ("WRONG", 4, 4)}),
        ({"laws": ["watch/own-data"]}, "DOES NOT CONFORM", {"data": ("WRONG", 0, 0)}),
        ({"laws": ["watch/used"], "lacks": True}, "DOES NOT CONFORM", {"clearing": ("WRONG", 4, 4)}),
    ],
)
def test_states_of_rows_and_the_verdict(options, verdict, others):
    assert rows(findings(**options)) == (verdict, {**PROVEN, **others})


@pytest.mark.parametrize(
    ("options", "expected", "proven"),
    [
        ({}, {}, 4),
        ({"open_": ["clearing.other-passes"] * 3}, {}, 1),
        ({"open_": ["clearing.other-passes"] * 3}, {CLEARING: "kept"}, 4),
        ({"open_": ["clearing.discarded"] * 5}, {}, 0),
        # Each step shows one fact.
        ({"steps": {(): 1, (SUM,): 2, ((CLEARING, "kept"),): 1}, "open_": ["ranks.sum"] * 2}, {}, 1),
        ({"open_": ["data.same-order"]}, {}, 4),
    ],
)
def test_a_step_is_proven_only_with_all_core_properties(options, expected, proven):
    assert outcome(findings(**options), expected).proven == proven


@pytest.mark.parametrize("open_", [code for code, (of, _) in FACTS.items() if of not in CORE])
def test_a_fact_about_other_properties_does_not_change_the_verdict(open_):
    of = outcome(findings(open_=[open_]))
    assert (of.verdict, of.open) == ("CONFORMS", 1)


def test_a_watch_without_steps_proves_nothing():
    assert rows(findings(steps={})) == ("UNDECIDED", {})
    assert rows(findings(steps={}, seen={Property.DATA: 3})) == ("UNDECIDED", {"data": ("PROVEN", 3, 3)})


@pytest.mark.parametrize(
    ("options", "expected", "verdict", "wrong"),
    [
        ({"steps": {(SUM,): 4}, "open_": ["ranks.sum"]}, {RANKS: "sum"}, "CONFORMS", []),
        ({"steps": {(SUM,): 3, (): 1}, "open_": ["ranks.sum"]}, {RANKS: "sum"}, "CONFORMS", []),
        ({"steps": {(SUM,): 4}, "open_": ["ranks.sum"]}, {RANKS: "mean"}, "DOES NOT CONFORM", ["ranks.sum"]),
        ({"steps": {(OWN,): 4}, "open_": ["ranks.own"]}, {RANKS: "sum"}, "DOES NOT CONFORM", ["ranks.own"]),
        ({}, {RANKS: "sum"}, "DOES NOT CONFORM", ["never-shown"]),
        ({}, {RANKS: "mean"}, "CONFORMS", []),
        ({"steps": {}}, {RANKS: "sum"}, "UNDECIDED", []),
        ({"open_": ["data.same-order"]}, {Property.DATA: "same"}, "CONFORMS", []),
        ({"open_": ["data.same-order"]}, {Property.DATA: "other"}, "DOES NOT CONFORM", ["data.same-order"]),
        ({"seen": {Property.DATA: 3}}, {Property.DATA: "same"}, "DOES NOT CONFORM", ["never-shown"]),
        ({"open_": ["clearing.discarded"]}, {CLEARING: "discarded"}, "CONFORMS", []),
        # A stated value allows the violation of a law, which shows the value.
        ({"steps": {(OWN,): 4}, "laws": ["watch/averaged"]}, {RANKS: "own"}, "CONFORMS", []),
        ({"steps": {(OWN,): 4}, "laws": ["watch/averaged"]}, {RANKS: "sum"}, "DOES NOT CONFORM", ["no-gradient"]),
        # An unknown value is neither settled nor contradicted.
        ({"steps": {(HOOK,): 4}, "open_": ["ranks.hook"]}, {RANKS: "mean"}, "UNDECIDED", []),
        ({"open_": ["changed.coarse"]}, {RANKS: "mean"}, "UNDECIDED", []),
        ({"steps": {(SUM,): 4, (HOOK,): 1}, "open_": ["ranks.sum", "ranks.hook"]}, {RANKS: "sum"}, "UNDECIDED", []),
        ({"open_": ["clearing.shared"], "lacks": True}, {CLEARING: "kept"}, "UNDECIDED", []),
    ],
)
def test_stated_expectations(options, expected, verdict, wrong):
    of = outcome(findings(**options), expected)
    assert (of.verdict, [cause.first.says.code for cause in of.causes]) == (verdict, wrong)


def test_a_violated_expectation_is_a_separate_problem():
    [cause] = outcome(findings(open_=["data.same-order"]), {Property.DATA: "other"}).causes
    assert (cause.first.law, cause.first.effect) == ("watch/as-expected", said("expected", of="data", value="other"))


def test_problems_are_listed_in_the_order_of_their_steps():
    found = findings(laws=["watch/used"])
    found.add(Finding("watch/cleared", said("not-cleared"), 3, (0,)))
    found.add(Finding("watch/averaged", said("own-gradients"), 2, (0,)))
    found.add(Finding("watch/own-data", said("data.same-inputs"), None, (0,)))
    laws = [cause.first.law for cause in outcome(found).causes]
    assert laws == ["watch/used", "watch/averaged", "watch/cleared", "watch/own-data"]


@pytest.mark.parametrize(
    ("options", "code", "strict"),
    [
        ({}, CONFORMING, CONFORMING),
        ({"open_": ["data.same-order"]}, CONFORMING, NOT_CONFORMING),
        ({"open_": ["clearing.discarded"]}, UNDECIDED, UNDECIDED),
        ({"open_": ["clearing.shared"]}, UNDECIDED, UNDECIDED),
        ({"lacks": True}, UNDECIDED, UNDECIDED),
        ({"laws": ["watch/used"]}, NOT_CONFORMING, NOT_CONFORMING),
    ],
)
def test_exit_codes(options, code, strict):
    of = outcome(findings(**options))
    assert (_exit(of, strict=False), _exit(of, strict=True)) == (code, strict)


@pytest.mark.parametrize(
    ("text", "expected"), [(f"{of.value}={value}", (of, value)) for of, values in VALUES.items() for value in values]
)
def test_each_value_can_be_stated(text, expected):
    assert stated(text) == expected


@pytest.mark.parametrize(
    ("text", "names"), [("rank=sum", "micro-batches"), ("ranks", "weighted"), ("ranks=other", "mean"), ("", "data")]
)
def test_an_unknown_expectation_is_refused_with_the_known_ones(text, names):
    with pytest.raises(ValueError, match=names):
        stated(text)


WATCH = Path(conformance.__file__).parent / "watch"


def is_said(node):
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "said"


def codes_of(node):
    if isinstance(node, ast.IfExp):
        return [*codes_of(node.body), *codes_of(node.orelse)]
    return [node.value] if isinstance(node, ast.Constant) else []


def all_said():
    """Each literal code of a message: the line, the code, and the keywords, with None for `**values`."""
    for path in sorted(WATCH.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if is_said(node):
                keywords = {one.arg for one in node.keywords}
                yield from ((f"{path.name}:{node.lineno}", code, keywords) for code in codes_of(node.args[0]))


def fields(code):
    return {name for _, name, _, _ in Formatter().parse(WORDS[code]) if name is not None}


def are_fields(code, keywords):
    return keywords - {None} <= fields(code) if None in keywords else keywords == fields(code)


def test_each_code_has_a_sentence_with_its_values():
    every = list(all_said())
    assert len(every) > 100
    assert [(at, code) for at, code, _ in every if code not in WORDS] == []
    assert [one for one in every if not are_fields(*one[1:])] == []
    assert FIXES.keys() | EDITS.keys() | EFFECTS.keys() <= WORDS.keys()


def test_facts_have_sentences_and_values_of_their_properties():
    assert FACTS.keys() - WORDS.keys() == set()
    shown = [*FACTS.items(), *((law.id, (Property(law.shows[0]), law.shows[1])) for law in LAWS.values())]
    assert [code for code, (of, value) in shown if value is not None and value not in VALUES[of]] == []


# The laws of a watch in `laws` and `explain`.


def test_all_laws_are_listed(capsys):
    assert main(["laws"]) == 0
    assert LAWS.keys() <= {*re.findall(r"watch/[\w-]+", capsys.readouterr().out)}


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("watch/averaged", "ranks: if intended, --expect ranks=own"),
        ("watch/own-gradient", "ranks: no option makes this right"),
        (AS_EXPECTED, "each property"),
    ],
)
def test_the_property_and_the_value_are_shown(capsys, name, shown):
    for of in ("watch", name):
        assert main(["explain", of]) == 0
        assert shown in " ".join(capsys.readouterr().out.partition(name)[2].partition("watch/")[0].split())


def test_the_value_of_each_law_can_be_stated():
    """It makes the violation an expected one, so it is not the usual value."""
    shown = [(law.id, *law.shows) for law in LAWS.values()]
    assert [law for law, of, value in shown if value is not None and value not in [*VALUES[Property(of)]][1:]] == []


def test_the_help_lists_each_property_and_its_values(capsys):
    with pytest.raises(SystemExit):
        main(["watch", "--help"])
    printed = " ".join(capsys.readouterr().out.split())
    assert [of for of in Property if f"{of.value} {', '.join(VALUES[of])}" not in printed] == []


def test_all_laws_are_judged():
    judged = {law for path in (WATCH / "judging").glob("*.py") for law in re.findall(r"watch/[\w-]+", path.read_text())}
    assert judged == LAWS.keys() - {AS_EXPECTED}
