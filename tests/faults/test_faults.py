"""The runner of `fixtures.faults` notices every difference from what a fault states."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable
from pathlib import Path
from signal import SIGTERM, SIGUSR1

import pytest

from fixtures.faults import trial
from fixtures.faults.__main__ import commit, every
from fixtures.faults.complaints import complaints
from fixtures.faults.fault import CODES, OPEN, RIGHT, WRONG, Fault, Sent, Surroundings, shell
from fixtures.faults.trial import Trial, tried

CASE = '{"kind":"case","trainer":"%s","verdict":"%s","headline":"%s"}'
TELLS = """
import os, signal
signal.signal(signal.SIGUSR1, lambda *_: open("told", "w").write(f"again {os.getpid()}\\n"))
open("told", "w").write(f"ready {os.getpid()}\\n")
while True: signal.pause()
"""


def fault(script: str = "echo spoken", **changed: object) -> Fault:
    """A watch of a shell that trains nothing, and the expected report."""
    stated = {"verdict": (OPEN,), "code": (), "says": ("^spoken UNDECIDED",)} | changed
    return Fault("name", ("watch", "--", "bash", "-c", script), **stated)


@pytest.fixture
def differences(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Differences after a fault, without waiting for processes that never end."""
    monkeypatch.setattr(trial, "PATIENCE", 0.1)

    def found(one: Fault) -> list[str]:
        with tried([one]) as result:
            return list(complaints(one, result))

    return found


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (fault(), []),
        (fault(verdict=(RIGHT,)), ["the verdict is UNDECIDED, stated: CONFORMS"]),
        (fault(verdict=()), ["the verdict is UNDECIDED, stated: none"]),
        (fault(code=(0, 7)), ["the exit code is 4, stated: 0 or 7"]),
        (fault(says=("sung",)), ["it does not say 'sung'"]),
        (fault(undecided_says=("sung",)), ["it does not say 'sung'"]),
        (fault(never=("spoken",)), ["it says 'spoken'"]),
        (fault(left={"kept": "whole"}), ["kept: is missing"]),
        (
            fault("echo spoken; echo half >kept", left={"kept": "whole"}),
            ["kept: is b'half\\n' (5 bytes), stated: b'whole'"],
        ),
        (fault(left={"told": lambda path: "is odd"}), ["told: is odd"]),
        (fault("echo spoken; touch kept", not_left=("k*",)), ["kept is left"]),
        (fault("echo spoken; touch $TMPDIR/mine"), ["left for temporary files: mine"]),
        (fault("echo spoken; touch $TMPDIR/mine", kept=("mine",)), []),
        (fault(within=shell("echo mine >left-inside")), ["left for temporary files: mine"]),
        (fault(sent=(Sent(SIGTERM),)), ["it ended before it told 'ready'"]),
        (
            fault("echo Traceback; echo ' File \"/conformance/watch/reading.py\", line 1'", says=()),
            ["it prints a traceback of conformance"],
        ),
    ],
)
def test_what_differs_is_said(differences: Callable[..., list[str]], one: Fault, said: list[str]) -> None:
    assert differences(one) == said


@pytest.mark.parametrize("start", ["setsid sleep 600", "env -i sleep 600"])
def test_what_survives_is_said_and_ended(
    differences: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    """Even if it removed its marker variable from its environment."""
    sent: list[tuple[int, int]] = []
    one = fault(f"{start} >&- 2>&- & echo spoken")
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda handle, number: sent.append((os.dup(handle), number)))
    assert differences(one) == ["still running: sleep 600"]
    [(handle, number)] = sent
    monkeypatch.undo()
    signal.pidfd_send_signal(handle, number)
    assert select.select([handle], [], [], trial.TIME_LIMIT)[0]
    os.close(handle)


def test_signals_are_sent_when_they_are_due(differences: Callable[..., list[str]]) -> None:
    """Here to the process that reported, and then to the front."""
    sent = (Sent(SIGUSR1, "told"), Sent(SIGTERM, "front", "again"))
    one = Fault("name", ("watch", "--", "{python}", "tells.py"), (OPEN,), (143,), {"tells.py": TELLS}, sent=sent)
    assert differences(one) == []


def test_what_a_machine_does_not_permit_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    forbidden = Surroundings(("bash", "-c", "echo not here >&2; exit 1"))
    assert commit([fault(), fault(within=forbidden)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "UNAVAILABLE name: not here"
    assert printed[-1].startswith("2 faults: 1 as stated, 0 differ, 1 unavailable here; ")


def test_each_that_differs_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert commit([fault(code=(0,))]) == 1
    line, last = capsys.readouterr().out.splitlines()
    assert line == "name: the exit code is 4, stated: 0"
    assert last.startswith("1 faults: 0 as stated, 1 differ, 0 unavailable here; ")


def test_those_that_share_a_command_are_judged_by_their_own_cases(tmp_path: Path) -> None:
    lines = [CASE % ("first", "CRASH", "left"), CASE % ("second", "PASS (exact)", "")]
    (tmp_path / "conformance-results.jsonl").write_text("\n".join(lines))
    result = Trial(tmp_path, 1, "everything", "", (), ())

    def of(name: str, says: str) -> list[str]:
        one = Fault(name, ("run",), ("CRASH",), (1,), {f"{name}.py": ""}, (says,), together="all")
        return list(complaints(one, result))

    assert of("first", "left") == []
    assert of("second", "everything") == [
        "the verdict is PASS (exact), stated: CRASH",
        "it does not say 'everything'",
    ]


@pytest.mark.parametrize("stated", [RIGHT, WRONG, OPEN])
def test_a_verdict_has_its_exit_code(tmp_path: Path, stated: str) -> None:
    one = fault(verdict=(RIGHT, WRONG, OPEN), says=())
    found = [complaints(one, Trial(tmp_path, code, f"{stated}: ...", "", (), ())) for code in range(5)]
    assert [code for code, differing in enumerate(found) if not [*differing]] == [CODES[stated]]


def test_there_are_enough_and_each_states_something() -> None:
    faults = every()
    assert len(faults) >= 150
    assert {fault.command[0] for fault in faults} >= {"run", "watch", "report"}
    assert [one.name for one in faults if not (one.code or {*one.verdict} & CODES.keys())] == []


@pytest.mark.parametrize(
    "name",
    [
        "ended-saving-at-ctrl-c",
        "ended-saving-at-sigterm-to-all",
        "ended-saving-at-sigterm-wrapped",
        "ended-saving-at-sigusr1",
        "ended-sighup",
        "ended-ignoring",
        "ended-second-sigterm",
        "ended-wrapper-at-sigterm",
        "ended-killed-wrapper",
        "ended-killed-with-children",
    ],
)
def test_how_a_watched_command_ends(name: str) -> None:
    """It gets signals first, and no process of its outlives it. The other faults take longer."""
    [named] = [one for one in every() if one.name == name]
    assert commit([named]) == 0
